package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// backdate is how long before its creation a certificate is valid, for peers whose clocks are behind.
const backdate = time.Hour

// Policy determines how long certificates live and when they are replaced. All fields must be set.
type Policy struct {
	// Service is the name of the service in the certificates; no decision depends on it.
	Service string
	// CALifetime is the time from the creation of a CA to its expiry. It must be at least three times CertLifetime, so that no
	// serving certificate outlives its CA.
	CALifetime time.Duration
	// CertLifetime is the same for serving certificates.
	CertLifetime time.Duration
	// Overlap is how long a new CA is published before the first certificate that it signs is served.
	Overlap time.Duration
	// Hosts are the DNS names and IP addresses of the service; at least one.
	Hosts []string
}

// Action is what to do about the certificates.
type Action string

// Actions.
const (
	// Keep changes nothing.
	Keep Action = "keep"
	// Issue creates a new serving certificate, signed by the current CA.
	Issue Action = "issue"
	// RotateCA creates a new CA and adds it to the trusted ones. The serving certificate stays, unless it does not work.
	RotateCA Action = "rotate CA"
)

// Decision is what to do now, and the reason.
type Decision struct {
	Action Action
	// Reason is for the log; empty for Keep.
	Reason string
	// CheckAfter is when to decide again if nothing changes meanwhile; positive for Keep, otherwise 0.
	CheckAfter time.Duration
}

// Next decides about the material at a given time.
//
// A CA or a serving certificate is replaced when a third of its lifetime is left. A new CA is first published in the bundle of
// trusted CAs, and signs only [Policy.Overlap] later. By then, every client has the new bundle, so a served certificate is always
// trusted by all clients. A certificate that would expire before that, for example after an increase of lifetimes, is replaced
// when a tenth of its lifetime is left.
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

		return Decision{Action: Issue, Reason: "the CA was replaced"}
	}

	renew := m.Cert.NotAfter.Add(-p.CertLifetime / 3)
	if !now.Before(renew) {
		return Decision{Action: Issue, Reason: "the serving certificate expires soon"}
	}

	rotate := m.CA.NotAfter.Add(-p.CALifetime / 3)

	return Decision{Action: Keep, CheckAfter: min(renew.Sub(now), rotate.Sub(now))}
}

const notYet = "is not valid yet: the clock of the replica that issued it is ahead, or that of this replica is behind"

func (p Policy) unusableCA(now time.Time, m Material) string {
	switch {
	case m.CA == nil:
		return "there is no CA with its key"
	case now.Before(m.CA.NotBefore):
		return "the CA " + notYet
	case !now.Before(m.CA.NotAfter.Add(-p.CALifetime / 3)):
		return "the CA expires soon"
	default:
		return ""
	}
}

// unusableCert returns why the serving certificate cannot be served, or "" if it can.
func (p Policy) unusableCert(now time.Time, m Material) string {
	switch {
	case m.Cert == nil:
		return "there is no serving certificate with its key"
	case now.Before(m.Cert.NotBefore):
		return "the serving certificate " + notYet
	case !now.Before(m.Cert.NotAfter):
		return "the serving certificate has expired"
	case !slices.ContainsFunc(m.Bundle, func(ca *x509.Certificate) bool { return signedBy(m.Cert, ca) && now.Before(ca.NotAfter) }):
		return "the serving certificate is not signed by a trusted CA"
	}

	for _, h := range p.Hosts {
		if m.Cert.VerifyHostname(h) != nil {
			return "the serving certificate is not for " + h
		}
	}

	return ""
}

// born returns when a certificate was created.
func born(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

func signedBy(c, ca *x509.Certificate) bool { return c.CheckSignatureFrom(ca) == nil }
