// Package auth authenticates and authorizes callers by the users and permissions of Kubernetes.
//
// A caller is identified by a bearer token, which the API server reviews. The API server also authorizes: a query about
// a ring requires permission to "get" the subresource "diagnostics" of that ClusterRing. A query about several rings at
// a time requires this permission on all rings. [Guard] checks every call.
//
// # Invariants
//
//  1. Nothing about a ring leaves the server without a positive answer of the API server that is at most [Options.TTL]
//     old. This also applies to each message of a stream: a user who has lost the permission receives no further
//     messages.
//  2. A request whose ring is not known requires permission on all rings.
//  3. If the API server does not answer, the call fails with UNAVAILABLE. It is neither permitted nor denied.
//  4. Callers with wrong tokens, however many, delay neither calls with tokens that were valid before, nor calls with
//     new tokens from other addresses.
//  5. Neither tokens nor their hashes are logged. An error contains only facts that the caller has sent itself.
//
// # Rejected alternatives
//
// The factory authenticatorfactory does not distinguish an invalid token from an API server that does not answer, and
// sends a review for every use of an invalid token. The token cache with our own reviewer does neither.
//
// The authorizer of k8s.io/apiserver sends a review for each of a thousand watchers of one user. It also depends on CEL
// and a trace exporter, for match conditions that nobody uses here.
package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"golang.org/x/sync/singleflight"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/quota"
)

// refusalTTL is the maximum time to cache a refusal, so that users can use a new permission within seconds.
const refusalTTL = 5 * time.Second

// Guard authenticates and authorizes calls. Its method Stream is a gRPC interceptor, which the server uses for unary
// calls, too. Health is open to everybody, because probes have no credentials. Reflection requires authentication. All
// other methods require permission on the ring in question. It is safe for concurrent use after SetupWithManager.
type Guard struct {
	// Options are validated. With [ModeNone], all calls pass.
	Options Options
	// RingOf returns the ring that a request is about. Empty: the request is about several rings, or the ring is not
	// known.
	RingOf func(request any) string
	// Domain is that of the google.rpc.ErrorInfo in errors.
	Domain string
	// Timeout is how long the API server has for an answer. Zero: 10 s.
	Timeout time.Duration
	// Log is that of the service.
	Log logr.Logger

	tokens authenticator.Token
	// known are the hashes of the tokens that were valid before. Others have places for each address.
	known  *cache.LRUExpireCache
	places *quota.Quota
	// Each client has its own limit of requests per second.
	reviewsOfUnknown, reviewsOfKnown authenticationclient.TokenReviewInterface

	// Equal questions about rights at the same time share one request, because all watchers of a ring receive a change at
	// the same moment, and many of them are the same user.
	rights  authorizationclient.SubjectAccessReviewInterface
	answers *cache.LRUExpireCache
	flights singleflight.Group
}

// SetupWithManager lets the guard ask the API server of the manager.
func (g *Guard) SetupWithManager(mgr manager.Manager) error {
	unknown, err1 := authenticationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	known, err2 := authenticationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	authorization, err3 := authorizationclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())

	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("make clients for TokenReviews and SubjectAccessReviews: %w", err)
	}

	g.Timeout = cmp.Or(g.Timeout, answersWithin)
	g.known, g.places = cache.NewLRUExpireCache(remembered), quota.New(math.MaxInt64, placesPerPeer)
	g.reviewsOfUnknown, g.reviewsOfKnown = unknown.TokenReviews(), known.TokenReviews()
	g.tokens = tokencache.New(authenticator.TokenFunc(g.review), false, g.Options.TTL, g.refusalTTL())
	g.rights, g.answers = authorization.SubjectAccessReviews(), cache.NewLRUExpireCache(remembered)

	return nil
}

func (g *Guard) refusalTTL() time.Duration { return min(g.Options.TTL, refusalTTL) }

// Stream authorizes a stream. It knows who the caller is before it reads anything. It checks each request of the
// stream. If many answers follow one request, it also checks before each answer.
func (g *Guard) Stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if g.Options.Mode == ModeNone || strings.HasPrefix(info.FullMethod, "/grpc.health.") {
		return handler(srv, stream)
	}

	who, err := g.identify(stream.Context())
	if err != nil {
		return err
	}

	// The audit log of the API server contains the ID, and who has created the token.
	id := strings.Join(who.GetExtra()[user.CredentialIDKey], ",")
	logging.AddFields(stream.Context(), logging.Fields{"user", who.GetName(), "credential", id})

	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		return handler(srv, stream)
	}

	guarded := &guardedStream{ServerStream: stream, guard: g, follows: !info.IsClientStream}
	if !info.IsClientStream && !info.IsServerStream {
		guarded.who = who
	}

	return handler(srv, guarded)
}

// guardedStream authorizes the messages of a stream.
type guardedStream struct {
	grpc.ServerStream

	guard *Guard
	// follows is true if the stream has one request, and all answers follow from it.
	follows bool
	// who is the caller of a unary call, which is authorized once. Nil: the caller is identified again for each message.
	who  user.Info
	ring string // of the request, if there is one
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

// check returns nil if the caller may query the ring, or else a status.
func (s *guardedStream) check(ring string) (err error) {
	who := s.who
	if who == nil {
		if who, err = s.guard.identify(s.Context()); err != nil {
			return err
		}
	}

	allowed, err := s.guard.may(s.Context(), who, ring)

	switch {
	case err != nil:
		return s.guard.unknown(s.Context(), err, "what the caller may query")
	case !allowed:
		return s.guard.denied(who.GetName(), ring)
	default:
		return nil
	}
}

// remembered is the maximum number of cached answers. The least recently used answer is evicted first.
const remembered = 4096

// may reports whether the user may query the ring, or all rings if the name is empty. An error means that the result is
// unknown.
func (g *Guard) may(ctx context.Context, who user.Info, ring string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
			Resource: "clusterrings", Subresource: "diagnostics", Name: ring,
		},
	}
	for key, values := range who.GetExtra() {
		spec.Extra[key] = values
	}

	key, err := json.Marshal(spec) // sorts the keys of maps
	if err != nil {
		return false, fmt.Errorf("encode the review for user %q: %w", who.GetName(), err)
	}

	if allowed, ok := g.answers.Get(string(key)); ok {
		return allowed == true, nil
	}

	flight := g.flights.DoChan(string(key), func() (any, error) {
		// other callers may still wait for it when ctx ends
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.Timeout)
		defer cancel()

		review, err := g.rights.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("review the permissions of user %q: %w", who.GetName(), err)
		}

		allowed, ttl := review.Status.Allowed && !review.Status.Denied, g.refusalTTL()
		if allowed {
			ttl = g.Options.TTL
		}

		if ttl > 0 {
			g.answers.Add(string(key), allowed, ttl)
		}

		return allowed, nil
	})

	select {
	case <-ctx.Done():
		return false, fmt.Errorf("wait for the API server: %w", ctx.Err())
	case result := <-flight:
		return result.Val == true, result.Err
	}
}

// unauthenticated returns the error for a caller that was not authenticated, and why.
func (g *Guard) unauthenticated(problem string) error {
	wanted := "send a token that the API server accepts"
	if len(g.Options.Audiences) > 0 {
		wanted = fmt.Sprintf("send a token for the audience %q (kubectl create token NAME --audience %[1]s)",
			g.Options.Audiences[0])
	}

	return g.status(codes.Unauthenticated, problem+": "+wanted+`, as metadata "authorization: Bearer <token>"`,
		"UNAUTHENTICATED")
}

// denied returns the error for a missing permission, and how to get the permission.
func (g *Guard) denied(user, ring string) error {
	what, object := "all rings at once", "clusterrings."+v1alpha1.GroupVersion.Group
	if ring != "" {
		what, object = fmt.Sprintf("ring %q", ring), object+"/"+ring
	}

	return g.status(codes.PermissionDenied, fmt.Sprintf("user %q may not get clusterrings/diagnostics of %s: this "+
		"requires the verb \"get\" on resource clusterrings/diagnostics of API group %s, which the ClusterRole "+
		"clusterring:diagnostics-viewer grants on all rings; to check, run 'kubectl auth can-i get %s "+
		"--subresource=diagnostics'", user, what, v1alpha1.GroupVersion.Group, object), "PERMISSION_DENIED")
}

// unknown returns the error for a failed request to the API server. The cause is logged and kept from the caller.
func (g *Guard) unknown(ctx context.Context, err error, what string) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err() //nolint:wrapcheck // a status is what a caller gets
	}

	g.Log.Error(err, "Failed to ask the API server", "about", what)

	return g.status(codes.Unavailable, "the API server did not report "+what+": try again, or ask another server",
		"API_SERVER_UNAVAILABLE")
}

func (g *Guard) status(code codes.Code, message, reason string) error {
	st := status.New(code, message)

	full, err := st.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: g.Domain})
	if err == nil { // otherwise, the code and the message are enough
		st = full
	}

	return st.Err() //nolint:wrapcheck // a status is what a caller gets
}
