package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// backdate is how long before its creation a certificate is valid, for peers whose clocks are behind.
const backdate = time.Hour

// Policy determines how long certificates live and when they are replaced. All fields must be set.
type Policy struct {
	// Service is the name of the service in the certificates; no decision depends on it.
	Service string
	// CALifetime is the time from the creation of a CA to its expiry. It must be at least three times CertLifetime, so
	// that no serving certificate outlives its CA.
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
// A CA or a serving certificate is replaced when a third of its lifetime is left. A new CA is first published in the
// bundle of trusted CAs, and signs only [Policy.Overlap] later. By then, every client has the new bundle, so a served
// certificate is always trusted by all clients. A certificate that would expire before that, for example after an
// increase of lifetimes, is replaced when a tenth of its lifetime is left.
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
	case !slices.ContainsFunc(m.Bundle, func(ca *x509.Certificate) bool {
		return signedBy(m.Cert, ca) &&
			now.Before(ca.NotAfter)
	}):
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

// organization is the organization in all certificates.
const organization = "clusterring"

// apply carries out the decision and returns the new material; m is not changed.
func (p Policy) apply(now time.Time, m Material, d Decision) (Material, error) {
	switch d.Action {
	case RotateCA:
		return p.rotate(now, m)
	case Issue:
		return p.issue(now, m)
	default:
		return m, nil
	}
}

// rotate creates a new CA. The CA that signed the serving certificate stays trusted while the certificate is served and
// until the next rotation, because replicas do not all switch at the same moment.
func (p Policy) rotate(now time.Time, m Material) (Material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return m, fmt.Errorf("create a private key: %w", err)
	}

	template := p.template(now, p.CALifetime, " CA")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature

	ca, err := sign(template, template, key, key)
	if err != nil {
		return m, err
	}

	serves := p.unusableCert(now, m) == ""
	m.Bundle = slices.DeleteFunc(slices.Clone(m.Bundle), func(c *x509.Certificate) bool {
		return !serves || !signedBy(m.Cert, c)
	})
	m.Bundle = slices.Insert(m.Bundle, 0, ca)
	m.CA, m.caKey = ca, key

	if serves {
		return m, nil
	}

	return p.issue(now, m)
}

// issue creates a new serving certificate.
func (p Policy) issue(now time.Time, m Material) (Material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return m, fmt.Errorf("create a private key: %w", err)
	}

	template := p.template(now, p.CertLifetime, "")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}

	if m.CA.NotAfter.Before(template.NotAfter) {
		template.NotAfter = m.CA.NotAfter
	}

	for _, h := range p.hosts(m) {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}

	m.Cert, err = sign(template, m.CA, key, m.caKey)
	if err != nil {
		return m, err
	}

	m.pair = tls.Certificate{Certificate: [][]byte{m.Cert.Raw}, PrivateKey: key, Leaf: m.Cert}

	return m, nil
}

// hosts returns the names of the next serving certificate: ours, and those of the current certificate if ours are new.
// During an update, replicas with the old and the new configuration must not replace each other's certificate.
func (p Policy) hosts(m Material) []string {
	hosts := slices.Clone(p.Hosts)

	if m.Cert == nil || !slices.ContainsFunc(p.Hosts, func(h string) bool { return m.Cert.VerifyHostname(h) != nil }) {
		return hosts
	}

	hosts = append(hosts, m.Cert.DNSNames...)
	for _, ip := range m.Cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}

	slices.Sort(hosts)

	return slices.Compact(hosts)
}

func (p Policy) template(now time.Time, lifetime time.Duration, role string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{
			Organization: []string{organization}, CommonName: organization + " " + p.Service + role,
		},
		NotBefore: now.Add(-backdate),
		NotAfter:  now.Add(lifetime),
	}
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer any) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}

	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the new certificate: %w", err)
	}

	return c, nil
}

// Keys of the Secret's data, in addition to those of every TLS Secret. The Secret also contains the private key of the
// CA, because any replica may have to sign. Everyone who can read it can also read the serving key.
const (
	keyBundle = "ca.crt"
	keyCAKey  = "ca.key"
)

// Material is the content of the Secret. Certificates and keys come in pairs: one without the other counts as missing.
type Material struct {
	// Bundle are the CA certificates that clients must trust.
	Bundle []*x509.Certificate
	// CA is the CA certificate that signs; nil if there is none with its key.
	CA *x509.Certificate
	// Cert is the serving certificate; nil if there is none with its key.
	Cert *x509.Certificate

	caKey crypto.PrivateKey
	pair  tls.Certificate
}

// parse reads what is usable of a Secret's data. It omits everything else, and the policy requests a new one.
func parse(data map[string][]byte) Material {
	var m Material

	if bundle, err := cert.ParseCertsPEM(data[keyBundle]); err == nil {
		m.Bundle = bundle
	}

	for _, ca := range m.Bundle {
		if pair, err := tls.X509KeyPair(encodeCerts(ca.Raw), data[keyCAKey]); err == nil && ca.IsCA {
			m.CA, m.caKey = ca, pair.PrivateKey
			break
		}
	}

	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err == nil {
		m.Cert, m.pair = pair.Leaf, pair
	}

	return m
}

// data returns the data that parse reads.
func (m Material) data() map[string][]byte {
	return map[string][]byte{
		keyBundle:               m.bundlePEM(),
		keyCAKey:                encodeKey(m.caKey),
		corev1.TLSCertKey:       encodeCerts(m.pair.Certificate...),
		corev1.TLSPrivateKeyKey: encodeKey(m.pair.PrivateKey),
	}
}

func (m Material) bundlePEM() (all []byte) {
	for _, ca := range m.Bundle {
		all = append(all, encodeCerts(ca.Raw)...)
	}

	return all
}

// withoutCAKey returns the material that is served after the Secret was lost.
func (m Material) withoutCAKey() Material {
	m.CA, m.caKey = nil, nil

	return m
}

func encodeCerts(certs ...[]byte) (all []byte) {
	for _, der := range certs {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})...)
	}

	return all
}

// encodeKey returns nil for a key that is missing.
func encodeKey(key crypto.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil { // it encodes every key that can be parsed
		return nil
	}

	return pem.EncodeToMemory(&pem.Block{Type: keyutil.PrivateKeyBlockType, Bytes: der})
}
