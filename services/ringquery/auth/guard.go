package auth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Guard lets a call pass if its caller may make it. Its methods Unary and Stream are gRPC's interceptors. Health is open to
// everybody, as probes have no credentials; reflection is open to everybody who is known; all else takes the right to the
// ring in question. It is safe for concurrent use once it is set up.
type Guard struct {
	// Options are validated; their mode is ModeKubernetes.
	Options Options
	// Client makes TokenReviews and SubjectAccessReviews.
	Client client.Writer
	// RingOf returns the name of the ring that a request is about; empty: it is about several, or not known.
	RingOf func(request any) string
	// Domain is that of the google.rpc.ErrorInfo in errors.
	Domain string
	// Clock and Log are those of the service.
	Clock clock.WithTicker
	Log   logr.Logger

	tokens       *tokens
	rights       *rights
	certificates *certificates // nil if client certificates are not taken
}

// AddTo sets the guard up, and makes the manager run what follows the authorities of client certificates. It reads their file, so
// that a mistake shows at once.
func (g *Guard) AddTo(mgr manager.Manager) error {
	g.tokens, g.rights = newTokens(g.Client, &g.Options, g.Clock), newRights(g.Client, &g.Options, g.Clock)

	if g.Options.ClientCAFile == "" {
		return nil
	}

	c, err := newCertificates(&g.Options, g.Clock)
	if err != nil {
		return err
	}

	if err := mgr.Add(c.file); err != nil {
		return fmt.Errorf("follow the authorities of client certificates: %w", err)
	}

	g.certificates = c

	return nil
}

// need is what a method takes of its caller.
type need int

const (
	nothing need = iota
	identification
	permission
)

func needOf(method string) need {
	switch {
	case strings.HasPrefix(method, "/grpc.health."):
		return nothing
	case strings.HasPrefix(method, "/grpc.reflection."):
		return identification
	default:
		return permission
	}
}

// Unary lets a unary call pass, or refuses it.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if n := needOf(info.FullMethod); n != nothing {
		c := g.caller(ctx)

		who, err := c.identify(ctx)
		if err != nil {
			return nil, err
		}
		logging.AddFields(ctx, logging.Fields{"user", who.Name})

		if n == permission {
			ring := g.RingOf(req)
			logging.AddFields(ctx, logging.Fields{"ring", ring})

			if err := g.permit(ctx, who, ring); err != nil {
				return nil, err
			}
		}
	}

	return handler(ctx, req)
}

// Stream lets a stream pass, or refuses it. It looks at each request of the stream and, where one request is followed by many
// answers, once more before each answer.
func (g *Guard) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	n := needOf(info.FullMethod)
	if n == nothing {
		return handler(srv, stream)
	}

	c := g.caller(stream.Context())

	who, err := c.identify(stream.Context())
	if err != nil {
		return err
	}
	logging.AddFields(stream.Context(), logging.Fields{"user", who.Name})

	if n == identification {
		return handler(srv, stream)
	}

	guarded := &guardedStream{ServerStream: stream, caller: c, follows: !info.IsClientStream}
	err = handler(srv, guarded)

	if refusal := guarded.refusal.Load(); refusal != nil {
		return *refusal // whatever the handler has made of it
	}

	return err
}

// guardedStream looks at the messages of a stream.
type guardedStream struct {
	grpc.ServerStream

	caller *caller
	// follows says that there is one request, and that what is sent follows from it.
	follows bool
	ring    string // of the request, if there is one
	refusal atomic.Pointer[error]
}

// RecvMsg receives a request that the caller may make, or fails.
func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err //nolint:wrapcheck // the end of the stream, as gRPC tells it
	}

	ring := s.caller.guard.RingOf(m)
	if s.follows {
		s.ring = ring
		logging.AddFields(s.Context(), logging.Fields{"ring", ring})
	}

	return s.check(ring)
}

// SendMsg sends an answer that the caller may still have, or fails.
func (s *guardedStream) SendMsg(m any) error {
	if s.follows {
		if err := s.check(s.ring); err != nil {
			return err
		}
	}

	return s.ServerStream.SendMsg(m) //nolint:wrapcheck // as gRPC tells it
}

func (s *guardedStream) check(ring string) error {
	who, err := s.caller.identify(s.Context())
	if err == nil {
		err = s.caller.guard.permit(s.Context(), who, ring)
	}

	if err != nil {
		s.refusal.CompareAndSwap(nil, &err)
	}

	return err
}

// caller is what a call shows of who makes it.
type caller struct {
	guard *Guard

	// malformed says what is wrong with the authorization that was sent; then there is no token.
	malformed error
	token     string
	tokenKey  string

	chain    []*x509.Certificate
	chainKey string
}

// caller reads what a call shows.
func (g *Guard) caller(ctx context.Context) *caller {
	c := &caller{guard: g}
	c.token, c.malformed = bearer(metadata.ValueFromIncomingContext(ctx, "authorization"))
	c.tokenKey = digest([]byte(c.token))

	if g.certificates == nil {
		return c
	}

	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c.chain = info.State.PeerCertificates
		}
	}

	raw := make([][]byte, 0, len(c.chain))
	for _, certificate := range c.chain {
		raw = append(raw, certificate.Raw)
	}

	c.chainKey = digest(raw...)

	return c
}

// bearer returns the token of an authorization; none if there is no authorization.
func bearer(authorization []string) (string, error) {
	switch len(authorization) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", errors.New("the metadata has more than one authorization: send one")
	}

	scheme, token, _ := strings.Cut(strings.TrimSpace(authorization[0]), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", errors.New(`the authorization is of another kind than "Bearer <token>"`)
	}

	return token, nil
}

// identify returns who the caller is: by the certificate, else by the token, as Kubernetes does. The error is a status.
func (c *caller) identify(ctx context.Context) (*identity, error) {
	var problems []error

	if len(c.chain) > 0 {
		who, err := c.guard.certificates.user(ctx, c.chain, c.chainKey)
		if err == nil {
			return who, nil
		}

		problems = append(problems, err)
	}

	if c.token != "" {
		who, err := c.guard.tokens.user(ctx, c.token, c.tokenKey)
		if err == nil {
			return who, nil
		}

		if !errors.Is(err, errInvalidToken) {
			return nil, c.guard.unknown(ctx, err, "who asks")
		}

		problems = append(problems, err)
	}

	return nil, c.guard.unauthenticated(append(problems, c.malformed)...)
}

// permit returns nil if the user may ask about the ring, else a status.
func (g *Guard) permit(ctx context.Context, who *identity, ring string) error {
	allowed, err := g.rights.may(ctx, who, ring)

	switch {
	case err != nil:
		return g.unknown(ctx, err, "what the caller may ask")
	case !allowed:
		return g.denied(who.Name, ring)
	default:
		return nil
	}
}
