package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// backdate is how long before its making a certificate is valid, for peers whose clocks are behind.
const backdate = time.Hour

// Policy says how long certificates live and when they are replaced. All fields must be set.
type Policy struct {
	// Service is the name of the service, which the certificates say; it decides nothing.
	Service string
	// CALifetime is the time from the making of a certificate authority to its expiry; at least three times CertLifetime,
	// so that no serving certificate outlives its authority.
	CALifetime time.Duration
	// CertLifetime is the same for serving certificates.
	CertLifetime time.Duration
	// Overlap is how long a new authority is known before the first certificate that it signs is served.
	Overlap time.Duration
	// Hosts are the DNS names and IP addresses that the service is called by. At least one.
	Hosts []string
}

// Action is what has to be done about the certificates.
type Action string

// Actions.
const (
	// Keep means that all is well.
	Keep Action = "keep"
	// Issue means that a new serving certificate is signed by the current authority.
	Issue Action = "issue"
	// RotateCA means that a new authority is made, and joins those that are trusted. The serving certificate stays, unless
	// there is none that works.
	RotateCA Action = "rotate CA"
)

// Decision is what to do now, and why.
type Decision struct {
	Action Action
	// Reason is for the log; empty for Keep.
	Reason string
	// CheckAfter is when to decide again, if nothing changes meanwhile. Positive for Keep, else 0.
	CheckAfter time.Duration
}

// Next decides about the material at a given time.
//
// An authority is replaced when a third of its life is left, a serving certificate likewise. A new authority is first
// published, in the bundle of those that are trusted, and signs only [Policy.Overlap] later: by then every client has
// the new bundle, and at no time is a certificate served that some client does not trust. Only a certificate that would expire
// before that, as when lifetimes have just been made longer, is replaced earlier: when a tenth of its life is left.
func (p Policy) Next(now time.Time, m Material) Decision {
	if why := p.unusableCA(now, m); why != "" {
		return Decision{Action: RotateCA, Reason: why}
	}

	if why := p.unusableCert(now, m); why != "" {
		return Decision{Action: Issue, Reason: why}
	}

	if !signedBy(m.Cert, m.CA) {
		last := m.Cert.NotAfter.Add(-m.Cert.NotAfter.Sub(born(m.Cert)) / 10)
		if wait := min(born(m.CA).Add(p.Overlap).Sub(now), last.Sub(now)); wait > 0 {
			return Decision{Action: Keep, CheckAfter: wait}
		}

		return Decision{Action: Issue, Reason: "the authority was replaced"}
	}

	renew := m.Cert.NotAfter.Add(-p.CertLifetime / 3)
	if !now.Before(renew) {
		return Decision{Action: Issue, Reason: "the serving certificate expires soon"}
	}

	rotate := m.CA.NotAfter.Add(-p.CALifetime / 3)

	return Decision{Action: Keep, CheckAfter: min(renew.Sub(now), rotate.Sub(now))}
}

func (p Policy) unusableCA(now time.Time, m Material) string {
	switch {
	case m.CA == nil:
		return "there is no authority with its key"
	case !now.Before(m.CA.NotAfter.Add(-p.CALifetime / 3)):
		return "the authority expires soon"
	default:
		return ""
	}
}

// unusableCert says why the serving certificate cannot be served, or nothing if it can.
func (p Policy) unusableCert(now time.Time, m Material) string {
	switch {
	case m.Cert == nil:
		return "there is no serving certificate with its key"
	case !now.Before(m.Cert.NotAfter):
		return "the serving certificate has expired"
	case !slices.ContainsFunc(m.Bundle, func(ca *x509.Certificate) bool { return signedBy(m.Cert, ca) && now.Before(ca.NotAfter) }):
		return "the serving certificate is signed by no trusted authority"
	}

	for _, h := range p.Hosts {
		if m.Cert.VerifyHostname(h) != nil {
			return "the serving certificate is not for " + h
		}
	}

	return ""
}

// born returns when a certificate was made.
func born(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

func signedBy(c, ca *x509.Certificate) bool { return c.CheckSignatureFrom(ca) == nil }
