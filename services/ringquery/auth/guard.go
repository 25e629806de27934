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

	"github.com/clusterring/clusterring/services/internal/quota"
)

// refusalTTL is the maximum time to cache a refusal, so that users can use a new permission within seconds.
const refusalTTL = 5 * time.Second

// Guard authenticates and authorizes calls. Its method Stream is a gRPC interceptor, which the server uses for unary calls, too. Health is open to everybody, because
// probes have no credentials. Reflection requires authentication. All other methods require permission on the ring in question. It
// is safe for concurrent use after SetupWithManager.
type Guard struct {
	// Options are validated; their mode is ModeKubernetes.
	Options Options
	// RingOf returns the ring that a request is about. Empty: the request is about several rings, or the ring is not known.
	RingOf func(request any) string
	// Domain is that of the google.rpc.ErrorInfo in errors.
	Domain string
	// Clock and Log are those of the service.
	Clock clock.PassiveClock
	Log   logr.Logger

	tokens       authenticator.Token
	rights       *rights
	certificates authenticator.Request // nil if client certificates are not accepted
}

// SetupWithManager sets up the guard, and lets the manager watch the file with the CA certificates of clients. It reads the file, so
// that a mistake is reported immediately.
func (g *Guard) SetupWithManager(mgr manager.Manager) error {
	if err := g.takeCertificates(mgr); err != nil {
		return err
	}

	// Each client for TokenReviews has its own limit of requests per second.
	unknown, err := authenticationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for TokenReviews: %w", err)
	}

	known, err := authenticationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for TokenReviews: %w", err)
	}

	authorization, err := authorizationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for SubjectAccessReviews: %w", err)
	}

	ttl, refusal := g.Options.TTL, min(g.Options.TTL, refusalTTL)
	review := &reviewer{
		unknown: unknown.TokenReviews(), known: known.TokenReviews(), acquaintances: newAcquaintances(), audiences: g.Options.Audiences,
	}
	g.tokens = &doorkeeper{Token: tokencache.New(review, false, ttl, refusal), known: review.acquaintances, places: quota.NewQueues(placesPerPeer)}
	g.rights = &rights{
		reviews: authorization.SubjectAccessReviews(), ttl: ttl, refusal: refusal, answers: cache.NewLRUExpireCache(remembered),
	}

	return nil
}

// takeCertificates accepts client certificates if there is a file with CA certificates.
func (g *Guard) takeCertificates(mgr manager.Manager) error {
	if g.Options.ClientCAFile == "" {
		return nil
	}

	file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", g.Options.ClientCAFile)
	if err != nil {
		return fmt.Errorf("read the CA certificates of clients (--client-ca-file): %w", err)
	}

	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		file.Run(ctx, 1)
		return nil
	})); err != nil {
		return fmt.Errorf("watch the CA certificates of clients: %w", err)
	}

	g.certificates = certificates(file, g.Clock)

	return nil
}

// isOpen reports whether everybody may call the method.
func isOpen(method string) bool { return strings.HasPrefix(method, "/grpc.health.") }

// needsPermission reports whether a method requires permission on the ring in question.
func needsPermission(method string) bool {
	return !isOpen(method) && !strings.HasPrefix(method, "/grpc.reflection.")
}

// admit identifies the caller of a method, unless the method is open to everybody.
func (g *Guard) admit(ctx context.Context, method string) (user.Info, error) {
	if isOpen(method) {
		return nil, nil //nolint:nilnil // nobody has to be known
	}

	who, err := g.identify(ctx)
	if err == nil {
		// The audit log of the API server contains the ID, and who has created the token.
		id := strings.Join(who.GetExtra()[user.CredentialIDKey], ",")
		logging.AddFields(ctx, logging.Fields{"user", who.GetName(), "credential", id})
	}

	return who, err
}

// Stream authorizes a stream. It knows who the caller is before it reads anything. It checks each request of the stream. If many answers
// follow one request, it also checks before each answer.
func (g *Guard) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	who, err := g.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}

	if !needsPermission(info.FullMethod) {
		return handler(srv, stream)
	}

	guarded := &guardedStream{ServerStream: stream, guard: g, follows: !info.IsClientStream}
	if !info.IsClientStream && !info.IsServerStream {
		guarded.who = who
	}

	err = handler(srv, guarded)

	if refusal := guarded.refusal.Load(); refusal != nil {
		return *refusal // regardless of what the handler returned
	}

	return err
}

// guardedStream authorizes the messages of a stream.
type guardedStream struct {
	grpc.ServerStream

	guard *Guard
	// follows is true if the stream has one request, and all answers follow from it.
	follows bool
	// who is the caller of a unary call, which is authorized once. Nil: the caller is identified again for each message.
	who     user.Info
	ring    string // of the request, if there is one
	refusal atomic.Pointer[error]
}

// RecvMsg receives a request and fails if the caller may not make it.
func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err //nolint:wrapcheck // the end of the stream
	}

	ring := s.guard.RingOf(m)
	if s.follows {
		s.ring = ring
		logging.AddFields(s.Context(), logging.Fields{"ring", ring})
	}

	return s.check(ring)
}

// SendMsg sends an answer and fails if the caller may no longer receive it.
func (s *guardedStream) SendMsg(m any) error {
	if s.follows && s.who == nil {
		if err := s.check(s.ring); err != nil {
			return err
		}
	}

	return s.ServerStream.SendMsg(m) //nolint:wrapcheck // a status already
}

func (s *guardedStream) check(ring string) error {
	who, err := s.who, error(nil)
	if who == nil {
		who, err = s.guard.identify(s.Context())
	}

	if err == nil {
		err = s.guard.permit(s.Context(), who, ring)
	}

	if err != nil {
		s.refusal.CompareAndSwap(nil, &err)
	}

	return err
}

// permit returns nil if the user may query the ring, or else a status.
func (g *Guard) permit(ctx context.Context, who user.Info, ring string) error {
	allowed, err := g.rights.may(ctx, who, ring)

	switch {
	case err != nil:
		return g.unknown(ctx, err, "what the caller may query")
	case !allowed:
		return g.denied(who.GetName(), ring)
	default:
		return nil
	}
}
