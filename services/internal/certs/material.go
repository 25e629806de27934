package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Keys of the Secret's data, in addition to those of every TLS Secret. The Secret also contains the private key of the CA,
// because any replica may have to sign. Whoever can read it can also read the serving key.
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

	caKey []byte
	pair  tls.Certificate
	// certPEM and keyPEM are the source of pair.
	certPEM, keyPEM []byte
}

// parse reads what is usable of a Secret's data. It omits everything else, and the policy requests a new one.
func parse(data map[string][]byte) Material {
	var m Material

	if bundle, err := cert.ParseCertsPEM(data[keyBundle]); err == nil {
		m.Bundle = bundle
	}

	for _, ca := range m.Bundle {
		if _, err := tls.X509KeyPair(encodeCerts(ca), data[keyCAKey]); err == nil && ca.IsCA {
			m.CA, m.caKey = ca, data[keyCAKey]
			break
		}
	}

	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err == nil {
		m.Cert, m.pair = pair.Leaf, pair
		m.certPEM, m.keyPEM = data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
	}

	return m
}

// data returns the data that parse reads.
func (m Material) data() map[string][]byte {
	return map[string][]byte{
		keyBundle:               m.bundlePEM(),
		keyCAKey:                m.caKey,
		corev1.TLSCertKey:       m.certPEM,
		corev1.TLSPrivateKeyKey: m.keyPEM,
	}
}

func (m Material) bundlePEM() []byte { return encodeCerts(m.Bundle...) }

// withoutCAKey returns the material that is served after the Secret was lost.
func (m Material) withoutCAKey() Material {
	m.CA, m.caKey = nil, nil

	return m
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer

	for _, c := range certs {
		if pem, err := cert.EncodeCertificates(c); err == nil {
			b.Write(pem)
		}
	}

	return b.Bytes()
}

// signer returns the private key of the CA.
func (m Material) signer() (any, error) {
	key, err := keyutil.ParsePrivateKeyPEM(m.caKey)
	if err != nil {
		return nil, fmt.Errorf("read the private key of the CA: %w", err)
	}

	return key, nil
}
