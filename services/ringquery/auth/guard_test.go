package auth_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/auth"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// Tests wait at most this long for a condition, and check it this often.
const (
	patience = 30 * time.Second
	interval = 10 * time.Millisecond
)

const (
	// long is longer than any test that needs a cached answer. short is how long other tests wait for an answer to expire.
	long   = time.Hour
	short  = 100 * time.Millisecond
	method = "/clusterring.test.Test/Ask"
)

// fixture is a guard. It counts the requests to a real API server.
type fixture struct {
	*auth.Guard

	t     *testing.T
	plane *localplane.Plane
	asked atomic.Int64
	// timeout is how long the API server has for an answer. Zero: the default.
	timeout time.Duration
}

// roundTripper implements http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// newFixture returns a guard that asks the API server with the permissions of the service.
func newFixture(t *testing.T, options auth.Options) *fixture {
	t.Helper()

	plane := localplane.Shared(t)
	f := &fixture{t: t, plane: plane}
	config := rest.CopyConfig(plane.Config)
	config.Impersonate.UserName = "system:serviceaccount:sharding-system:ringquery"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if strings.HasSuffix(req.URL.Path, "reviews") {
				f.asked.Add(1)
			}

			return next.RoundTrip(req)
		})
	})
	f.setUp(options, config)

	return f
}

// setUp creates the guard for the API server in the configuration, and starts its manager.
func (f *fixture) setUp(options auth.Options, config *rest.Config) {
	f.t.Helper()

	options.Mode = auth.ModeKubernetes
	f.Guard = &auth.Guard{
		Options: options, Log: logr.Discard(), Domain: "test", Timeout: f.timeout,
		RingOf: func(request any) string { return request.(string) },
	}
	mgr, err := manager.New(config, manager.Options{
		Scheme: f.plane.Client.Scheme(), Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	require.NoError(f.t, err)
	require.NoError(f.t, f.SetupWithManager(mgr))

	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))

	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
}

// unary is the stream of a unary call, whose request is the name of a ring.
type unary struct {
	grpc.ServerStream

	ctx  context.Context //nolint:containedctx // that of the stream
	read bool
}

func (u *unary) Context() context.Context { return u.ctx }
func (*unary) SendMsg(any) error          { return nil }

func (u *unary) RecvMsg(any) error {
	u.read = true
	return nil
}

// ask makes a call, and returns the error of the guard. Nothing is read of a caller who is not known.
func (f *fixture) ask(ctx context.Context, ring string) error {
	call := &unary{ctx: ctx}
	err := f.Stream(nil, call, &grpc.StreamServerInfo{FullMethod: method}, func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(ring); err != nil {
			return err
		}

		return stream.SendMsg("answer")
	})
	require.True(f.t, call.read || status.Code(err) != codes.PermissionDenied && err != nil)
	require.False(f.t, call.read && status.Code(err) == codes.Unauthenticated, "the request of a stranger was read")

	return err
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

// account creates a service account, which may query all rings if that is granted, and returns it with a token.
func (f *fixture) account(
	granted bool,
) (account *corev1.ServiceAccount, grant *rbacv1.ClusterRoleBinding, token string) {
	f.t.Helper()

	ctx, namespace := f.t.Context(), f.plane.Namespace(f.t)
	account = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "caller"}}
	require.NoError(f.t, f.plane.Client.Create(ctx, account))

	if granted {
		grant = f.grant(namespace, rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: "caller"})
	}

	review := &authenticationv1.TokenRequest{}
	require.NoError(f.t, f.plane.Client.SubResource("token").Create(ctx, account, review))

	return account, grant, review.Status.Token
}

func (f *fixture) grant(name string, subject rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	f.t.Helper()

	grant := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterring:diagnostics-viewer"},
		Subjects:   []rbacv1.Subject{subject},
	}
	require.NoError(f.t, f.plane.Client.Create(f.t.Context(), grant))
	f.t.Cleanup(func() {
		_ = client.IgnoreNotFound(f.plane.Client.Delete(context.WithoutCancel(f.t.Context()), grant))
	})

	return grant
}

// eventually waits until a call returns this code. The API server takes a moment to apply new permissions.
func (f *fixture) eventually(ctx context.Context, want codes.Code) {
	f.t.Helper()

	require.Eventually(f.t, func() bool { return status.Code(f.ask(ctx, "a")) == want }, patience, interval)
}

func TestAnswersAreUsedAgainForAWhile(t *testing.T) {
	f := newFixture(t, auth.Options{TTL: long})
	_, grant, token := f.account(true)
	ctx := withToken(t.Context(), token)
	f.eventually(ctx, codes.OK)

	before := f.asked.Load()
	for range 3 {
		require.NoError(t, f.ask(ctx, "a"))
	}
	require.EqualValues(t, 0, f.asked.Load()-before, "the token and the right have been reviewed")

	for range 3 {
		require.NoError(t, f.ask(ctx, "b"))
	}
	require.EqualValues(t, 1, f.asked.Load()-before, "another ring, another right")

	require.NoError(t, f.plane.Client.Delete(t.Context(), grant))
	require.NoError(t, f.ask(ctx, "a"), "the answer is still used")
	require.Eventually(t, func() bool { // the API server has seen it, too
		return status.Code(f.ask(ctx, string(rune('c'+f.asked.Load())))) == codes.PermissionDenied
	}, patience, interval)
	require.NoError(t, f.ask(ctx, "a"))
}

func TestAnswersAreForgotten(t *testing.T) {
	f := newFixture(t, auth.Options{TTL: short})

	for _, want := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated} {
		account, grant, token := f.account(true)
		ctx := withToken(t.Context(), token)
		f.eventually(ctx, codes.OK)

		lost := client.Object(grant)
		if want == codes.Unauthenticated {
			lost = account
		}

		require.NoError(t, f.plane.Client.Delete(t.Context(), lost))
		f.eventually(ctx, want)
	}
}

// A refusal is forgotten long before a positive answer would expire.
func TestRefusalsAreForgottenSoon(t *testing.T) {
	f := newFixture(t, auth.Options{TTL: long})
	_, _, token := f.account(false)

	for token, want := range map[string]codes.Code{
		"no.such.token": codes.Unauthenticated, token: codes.PermissionDenied,
	} {
		ctx := withToken(t.Context(), token)
		require.Equal(t, want, status.Code(f.ask(ctx, "a")))

		before := f.asked.Load()
		require.Equal(t, want, status.Code(f.ask(ctx, "a")))
		require.Equal(t, before, f.asked.Load(), "the refusal is used again")
		require.Eventually(t, func() bool {
			require.Equal(t, want, status.Code(f.ask(ctx, "a")))
			return f.asked.Load() > before
		}, patience, interval)
		require.Equal(t, before+1, f.asked.Load(), "one review: of the token or of the right")
	}
}

func TestAPIServerThatDoesNotAnswerIsNoRefusal(t *testing.T) {
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer down.Close()

	f := newFixture(t, auth.Options{TTL: short})
	f.setUp(auth.Options{TTL: long}, &rest.Config{Host: down.URL})

	err := f.ask(withToken(t.Context(), "a.b.c"), "a")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.NotContains(t, err.Error(), down.URL)

	ended, cancel := context.WithCancel(withToken(t.Context(), "d.e.f"))
	cancel()
	require.Equal(t, codes.Canceled, status.Code(f.ask(ended, "a")))
}
