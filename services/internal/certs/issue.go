package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/keyutil"
)

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

// rotate creates a new CA. The CA that signed the serving certificate stays trusted while the certificate is served and until the
// next rotation, because replicas do not all switch at the same moment.
func (p Policy) rotate(now time.Time, m Material) (Material, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return m, err
	}

	template := p.template(now, p.CALifetime)
	template.Subject.CommonName = p.commonName() + " CA"
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature

	ca, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return m, err
	}

	serves := p.unusableCert(now, m) == ""
	m.Bundle = slices.DeleteFunc(slices.Clone(m.Bundle), func(c *x509.Certificate) bool {
		return !serves || !signedBy(m.Cert, c)
	})
	m.Bundle = slices.Insert(m.Bundle, 0, ca)
	m.CA, m.caKey = ca, keyPEM

	if serves {
		return m, nil
	}

	return p.issue(now, m)
}

// issue creates a new serving certificate.
func (p Policy) issue(now time.Time, m Material) (Material, error) {
	signer, err := m.signer()
	if err != nil {
		return m, err
	}

	key, keyPEM, err := newKey()
	if err != nil {
		return m, err
	}

	template := p.template(now, p.CertLifetime)
	template.Subject.CommonName = p.commonName()
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

	c, err := sign(template, m.CA, &key.PublicKey, signer)
	if err != nil {
		return m, err
	}

	m.certPEM, m.keyPEM = encodeCerts(c), keyPEM

	return parse(m.data()), nil
}

// hosts returns the names of the next serving certificate: ours, and those of the current certificate if ours are new. During an
// update, replicas with the old and the new configuration must not replace each other's certificate.
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

func (p Policy) commonName() string { return organization + " " + p.Service }

func (p Policy) template(now time.Time, lifetime time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{organization}},
		NotBefore: now.Add(-backdate),
		NotAfter:  now.Add(lifetime),
	}
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create a private key: %w", err)
	}

	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a private key: %w", err)
	}

	return key, pem, nil
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, signer any) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("create a serial number: %w", err)
	}

	template.SerialNumber = serial

	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}

	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the new certificate: %w", err)
	}

	return c, nil
}
