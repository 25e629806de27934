package services

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is the lifetime of a certificate: longer than any tool runs.
const lifetime = 7 * 24 * time.Hour

// Certificate is a self-signed certificate for 127.0.0.1.
type Certificate struct {
	// CertFile and KeyFile are PEM files. Clients verify the server with CertFile.
	CertFile, KeyFile string
	// CA is the content of CertFile.
	CA []byte
}

// NewCertificate creates a certificate in a directory for the named server. Like the certificates of the services, it has an ECDSA P-256
// key.
func NewCertificate(dir, name string, now time.Time) (Certificate, error) {
	c := Certificate{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, fmt.Errorf("make a key: %w", err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, fmt.Errorf("make a certificate: %w", err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, fmt.Errorf("encode a key: %w", err)
	}

	c.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(c.CertFile, c.CA, 0o600); err != nil {
		return c, fmt.Errorf("write a certificate: %w", err)
	}

	if err := os.WriteFile(c.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return c, fmt.Errorf("write a key: %w", err)
	}

	return c, nil
}
