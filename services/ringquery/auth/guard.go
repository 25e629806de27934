package auth

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// refusalTTL is the longest time that a refusal is remembered: who has just got a right should not wait for it.
const refusalTTL = 5 * time.Second

// Guard lets a call pass if its caller may make it. Its methods Unary and Stream are gRPC's interceptors. Health is open to
// everybody, as probes have no credentials; reflection is open to everybody who is known; all else takes the right to the
// ring in question. It is safe for concurrent use once it is set up.
type Guard struct {
	// Options are validated; their mode is ModeKubernetes.
	Options Options
	// RingOf returns the name of the ring that a request is about; empty: it is about several, or not known.
	RingOf func(request any) string
	// Domain is that of the google.rpc.ErrorInfo in errors.
	Domain string
	// Clock and Log are those of the service.
	Clock clock.PassiveClock
	Log   logr.Logger

	tokens       authenticator.Token
	rights       *rights
	certificates authenticator.Request // nil if client certificates are not taken
}

// AddTo sets the guard up, and makes the manager run what follows the authorities of client certificates. It reads their file, so
// that a mistake shows at once.
func (g *Guard) AddTo(mgr manager.Manager) error {
	if err := g.takeCertificates(mgr); err != nil {
		return err
	}

	authentication, err := authenticationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for TokenReviews: %w", err)
	}

	authorization, err := authorizationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for SubjectAccessReviews: %w", err)
	}

	ttl, refusal := g.Options.TTL, min(g.Options.TTL, refusalTTL)
	g.tokens = tokencache.New(&reviewer{authentication.TokenReviews(), g.Options.Audiences}, false, ttl, refusal)
	g.rights = &rights{
		reviews: authorization.SubjectAccessReviews(), ttl: ttl, refusal: refusal, answers: cache.NewLRUExpireCache(remembered),
	}

	return nil
}

// takeCertificates takes client certificates if there is a file of authorities.
func (g *Guard) takeCertificates(mgr manager.Manager) error {
	if g.Options.ClientCAFile == "" {
		return nil
	}

	file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", g.Options.ClientCAFile)
	if err != nil {
		return fmt.Errorf("take client certificates (--client-ca-file): %w", err)
	}

	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		file.Run(ctx, 1)
		return nil
	})); err != nil {
		return fmt.Errorf("follow the authorities of client certificates: %w", err)
	}

	g.certificates = certificates(file, g.Clock)

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
		logging.AddFields(ctx, logging.Fields{"user", who.GetName()})

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
	logging.AddFields(stream.Context(), logging.Fields{"user", who.GetName()})

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

// permit returns nil if the user may ask about the ring, else a status.
func (g *Guard) permit(ctx context.Context, who user.Info, ring string) error {
	allowed, err := g.rights.may(ctx, who, ring)

	switch {
	case err != nil:
		return g.unknown(ctx, err, "what the caller may ask")
	case !allowed:
		return g.denied(who.GetName(), ring)
	default:
		return nil
	}
}
