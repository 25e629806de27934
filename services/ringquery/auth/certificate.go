package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
)

// authoritiesInterval is how often the file of --client-ca-file is looked at. A mounted Secret takes longer to change.
const authoritiesInterval = 10 * time.Second

// everybody is the group of all users that are known. The API server adds it itself to those that it authenticates.
const everybody = "system:authenticated"

// certificates finds out whose a client certificate is.
//
// TLS itself asks for a certificate and does not judge it. It is judged with every call: a connection outlives certificates and
// authorities, and a caller whose certificate has expired deserves an answer that says so.
type certificates struct {
	path  string
	ttl   time.Duration
	clock clock.WithTicker
	log   logr.Logger

	authorities atomic.Pointer[authorities]
	answers     *memory[*identity]
}

// authorities are what the file held at one time.
type authorities struct {
	key  string // digest of the file
	pool *x509.CertPool
}

// newCertificates reads the authorities.
func newCertificates(o *Options, clk clock.WithTicker, log logr.Logger) (*certificates, error) {
	c := &certificates{path: o.ClientCAFile, ttl: o.TTL, clock: clk, log: log, answers: newMemory[*identity](clk)}
	if _, err := c.read(); err != nil {
		return nil, err
	}

	return c, nil
}

// read reads the file and says whether it has changed. What was read before stays if the file cannot be used.
func (c *certificates) read() (changed bool, err error) {
	pem, err := os.ReadFile(c.path)
	if err != nil {
		return false, fmt.Errorf("read the authorities of client certificates (--client-ca-file): %w", err)
	}

	key := digest(pem)
	if before := c.authorities.Load(); before != nil && before.key == key {
		return false, nil
	}

	pool, err := cert.NewPoolFromBytes(pem)
	if err != nil {
		return false, fmt.Errorf("read the authorities of client certificates (--client-ca-file) from %s: %w", c.path, err)
	}

	c.authorities.Store(&authorities{key, pool})

	return true, nil
}

// NeedLeaderElection puts the runnable into the group of what runs in every replica.
func (*certificates) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it follows the file until ctx ends.
func (c *certificates) Start(ctx context.Context) error {
	ticker := c.clock.NewTicker(authoritiesInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}

		if changed, err := c.read(); err != nil {
			c.log.Error(err, "Authorities of client certificates stay as they were")
		} else if changed {
			c.log.Info("Authorities of client certificates have changed", "file", c.path)
		}
	}
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
