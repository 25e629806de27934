package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/certs"
)

// everybody is the group of all users that are known. The API server adds it itself to those that it authenticates.
const everybody = "system:authenticated"

// certificates finds out whose a client certificate is.
//
// TLS itself asks for a certificate and does not judge it. It is judged with every call: a connection outlives certificates and
// authorities, and a caller whose certificate has expired deserves an answer that says so.
type certificates struct {
	file  *certs.BundleFile
	ttl   time.Duration
	clock clock.PassiveClock

	authorities atomic.Pointer[authorities]
	answers     *memory[*identity]
}

// authorities are what the file held at one time.
type authorities struct {
	key  string // digest of the file
	pool *x509.CertPool
}

// newCertificates reads the authorities, and follows their file when it is run.
func newCertificates(o *Options, clk clock.WithTicker) (*certificates, error) {
	c := &certificates{ttl: o.TTL, clock: clk, answers: newMemory[*identity](clk)}

	file, err := certs.NewBundleFile(o.ClientCAFile, clk, c.trust)
	if err != nil {
		return nil, fmt.Errorf("take client certificates (--client-ca-file): %w", err)
	}

	c.file = file
	c.trust(file.PEM())

	return c, nil
}

// trust takes the authorities of the bundle, which has been parsed before, in place of those until now.
func (c *certificates) trust(pem []byte) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	c.authorities.Store(&authorities{digest(pem), pool})
}

// user returns whose the certificate is, the first of the chain, whose digest is the key. An error says what is wrong with it.
func (c *certificates) user(ctx context.Context, chain []*x509.Certificate, key string) (*identity, error) {
	trusted := c.authorities.Load()

	// A verification takes longer than most answers.
	return c.answers.get(ctx, trusted.key+key, func(context.Context) (*identity, time.Duration, error) {
		now := c.clock.Now()

		expires, err := verify(chain, trusted.pool, now)
		if err != nil {
			return nil, 0, err
		}

		subject := chain[0].Subject
		found, err := identify(&User{Name: subject.CommonName, Groups: slices.Concat(subject.Organization, []string{everybody})})

		return found, min(c.ttl, expires.Sub(now)), err
	})
}

// verify returns when the first of the verified certificates expires.
func verify(chain []*x509.Certificate, pool *x509.CertPool, now time.Time) (expires time.Time, err error) {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}

	chains, err := chain[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("the client certificate is not valid: %w", err)
	}

	if chain[0].Subject.CommonName == "" {
		return time.Time{}, errors.New("the client certificate names no user: its subject has no common name")
	}

	expires = chain[0].NotAfter
	for _, c := range chains[0] {
		if c.NotAfter.Before(expires) {
			expires = c.NotAfter
		}
	}

	return expires, nil
}
