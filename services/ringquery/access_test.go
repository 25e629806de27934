package ringquery_test

import (
	"context"
	"crypto/tls"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/certtest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// viewerRole is the ClusterRole in deploy/base/ringquery that grants access to all rings.
const viewerRole = "clusterring:diagnostics-viewer"

// secured is the command with TLS, authentication, and authorization. Its own connection may query all rings.
type secured struct {
	*server

	authority *certtest.Authority // of its certificate
}

// startSecured starts a server without a cache of permissions, so that tests do not have to wait.
func startSecured(t *testing.T, args ...string) *secured {
	t.Helper()

	authority := certtest.NewAuthority(t)
	s := &secured{authority: authority, server: launch(t, slices.Concat(serving(t, authority),
		[]string{"--access-cache-ttl", "0"}, args)...)}
	s.begin()

	return s
}

// serving returns the flags for a certificate of the authority.
func serving(t *testing.T, authority *certtest.Authority) []string {
	t.Helper()

	cert, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	authority.Server(t, 1, time.Time{}).Write(t, cert, key)

	return []string{"--ca-mode", "file", "--tls-cert-file", cert, "--tls-private-key-file", key}
}

// begin waits until the server serves, and grants its connection access to all rings.
func (s *secured) begin() {
	s.t.Helper()

	s.use(s.connect())
	s.waitHealth(healthpb.HealthCheckResponse_SERVING)
	s.use(s.connect(bearer(s.caller(viewerRole).token)))
	require.Eventually(s.t, func() bool {
		_, err := s.ListRings(s.t.Context(), &pb.ListRingsRequest{})
		return err == nil
	}, patience, interval)
}

// connect returns a connection that verifies the server, with further options.
func (s *secured) connect(options ...grpc.DialOption) *grpc.ClientConn {
	s.t.Helper()

	return s.dial(credentials.NewTLS(&tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS13}), options...)
}

// bearer sends a token with every call.
func bearer(token string) grpc.DialOption {
	return grpc.WithPerRPCCredentials(authorization("Bearer " + token))
}

// authorization sends a header of this value with every call.
type authorization string

func (a authorization) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": string(a)}, nil
}
func (authorization) RequireTransportSecurity() bool { return false }

// caller is a service account.
type caller struct {
	*corev1.ServiceAccount

	token string
	grant *rbacv1.ClusterRoleBinding // nil without a role
}

// caller creates a service account and binds the role to it. Empty: it has no role.
func (s *secured) caller(role string) *caller {
	s.t.Helper()

	c := &caller{ServiceAccount: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.plane.Namespace(s.t),
		Name: "caller"}}}
	require.NoError(s.t, s.plane.Client.Create(s.t.Context(), c.ServiceAccount))

	c.token = s.tokenOf(c.ServiceAccount, pb.TokenAudience)

	if role != "" {
		c.grant = s.grant(role, rbacv1.Subject{Kind: "ServiceAccount", Namespace: c.Namespace, Name: c.Name})
	}

	return c
}

// tokenOf returns a token of the service account for the audiences. None: for the API server.
func (s *server) tokenOf(account *corev1.ServiceAccount, audiences ...string) string {
	s.t.Helper()

	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	require.NoError(s.t, s.plane.Client.SubResource("token").Create(s.t.Context(), account, request))

	return request.Status.Token
}

// grant binds a role to a subject until the test ends.
func (s *secured) grant(role string, to rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	s.t.Helper()

	grant := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{to},
	}
	s.make(grant)

	return grant
}

// make creates an object and deletes it when the test ends.
func (s *secured) make(object client.Object) {
	s.t.Helper()

	require.NoError(s.t, s.plane.Client.Create(s.t.Context(), object))
	s.t.Cleanup(func() { _ = client.IgnoreNotFound(s.plane.Client.Delete(context.WithoutCancel(s.t.Context()), object)) })
}

// asks queries the ring until the answer has this code. The API server takes a moment to apply new permissions.
func (s *secured) asks(conn *grpc.ClientConn, ring string, want codes.Code) {
	s.t.Helper()

	require.Eventually(s.t, func() bool {
		_, err := pb.NewDiagnosticsServiceClient(conn).GetRing(s.t.Context(), &pb.GetRingRequest{Name: ring})
		return status.Code(err) == want
	}, patience, interval)
}

// everyMethod calls each method of the service with an empty request, and passes the error to check.
func everyMethod(t *testing.T, conn *grpc.ClientConn, check func(method string, err error)) {
	t.Helper()

	service := pb.DiagnosticsService_ServiceDesc
	for _, m := range service.Methods {
		method := "/" + service.ServiceName + "/" + m.MethodName
		check(method, conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{}))
	}

	for i := range service.Streams {
		method := "/" + service.ServiceName + "/" + service.Streams[i].StreamName
		stream, err := conn.NewStream(t.Context(), &service.Streams[i], method)
		require.NoError(t, err)

		_ = stream.SendMsg(&emptypb.Empty{}) // fails if the stream has ended; RecvMsg then says why
		_ = stream.CloseSend()
		check(method, stream.RecvMsg(&emptypb.Empty{}))
	}
}

func TestNoMethodIsForThoseWhoAreNotKnown(t *testing.T) {
	s := startSecured(t)
	gone := s.caller(viewerRole)
	require.NoError(t, s.plane.Client.Delete(t.Context(), gone.ServiceAccount))
	s.asks(s.connect(bearer(gone.token)), "a", codes.Unauthenticated)

	for name, conn := range map[string]*grpc.ClientConn{
		"nothing":       s.connect(),
		"invalid token": s.connect(bearer("no.such.token")),
		"revoked token": s.connect(bearer(gone.token)),
		"empty token":   s.connect(bearer("")),
		"password":      s.connect(grpc.WithPerRPCCredentials(authorization("Basic amFuZTpqYW5l"))),
	} {
		t.Run(name, func(t *testing.T) {
			everyMethod(t, conn, func(method string, err error) {
				require.Equal(t, codes.Unauthenticated, status.Code(err), "%s: %v", method, err)
				require.Equal(t, "UNAUTHENTICATED", reason(err))
				require.ErrorContains(t, err, "send a token")
			})
		})
	}
}

// TestTokensDoNotOpenBoth verifies that no token is accepted by both ringquery and the API server.
func TestTokensDoNotOpenBoth(t *testing.T) {
	s := startSecured(t)
	c := s.caller(viewerRole)
	s.asks(s.connect(bearer(c.token)), "a", codes.NotFound)

	forAPIServer := s.tokenOf(c.ServiceAccount)
	everyMethod(t, s.connect(bearer(forAPIServer)), func(method string, err error) {
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%s: %v", method, err)
		require.ErrorContains(t, err, "kubectl create token NAME --audience ringquery")
	})

	whoami := func(token string) error {
		config := rest.AnonymousClientConfig(s.plane.Config)
		config.BearerToken = token
		api, err := authenticationclient.NewForConfig(config)
		require.NoError(t, err)
		_, err = api.SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})

		return err
	}
	require.NoError(t, whoami(forAPIServer))
	require.True(t, apierrors.IsUnauthorized(whoami(c.token)), "the API server accepts a token for ringquery")
}

func TestNoMethodIsForThoseWithoutRights(t *testing.T) {
	s := startSecured(t)

	for name, conn := range map[string]*grpc.ClientConn{
		"token":       s.connect(bearer(s.caller("").token)),
		"other right": s.connect(bearer(s.caller("view").token)),
	} {
		t.Run(name, func(t *testing.T) {
			everyMethod(t, conn, func(method string, err error) {
				require.Equal(t, codes.PermissionDenied, status.Code(err), "%s: %v", method, err)
				require.Equal(t, "PERMISSION_DENIED", reason(err))
				require.ErrorContains(t, err, "which the ClusterRole "+viewerRole+" grants")
				require.ErrorContains(t, err, "kubectl auth can-i get clusterrings.sharding.timebertt.dev "+
					"--subresource=diagnostics")
			})
		})
	}
}

func TestLogSaysWhoHasAskedAboutWhichRing(t *testing.T) {
	s := startSecured(t, "--log-level", "debug")
	c := s.caller("")
	_, err := pb.NewDiagnosticsServiceClient(s.connect(bearer(c.token))).GetRing(t.Context(),
		&pb.GetRingRequest{Name: "example"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))

	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), `"grpc.code":"PermissionDenied"`) },
		patience, interval)

	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, `"grpc.code":"PermissionDenied"`) {
			for _, text := range []string{
				`"user":"system:serviceaccount:` + c.Namespace + `:caller"`, `"credential":"JTI=`, `"ring":"example"`,
				`"grpc.method":"GetRing"`,
			} {
				require.Contains(t, line, text)
			}
		}
	}
	require.NotContains(t, s.log.String(), c.token)
}

func TestRightToOneRing(t *testing.T) {
	s := startSecured(t)
	mine, _ := s.makeRing(configMaps())
	other, _ := s.makeRing(configMaps())
	conn := s.connect(bearer(s.caller(s.role(mine)).token))
	ask := pb.NewDiagnosticsServiceClient(conn)
	s.asks(conn, mine, codes.OK)

	object := &pb.ObjectReference{Type: &pb.ObjectReference_Resource{Resource: "configmaps"}, Namespace: "default",
		Name: "a"}

	_, err := ask.GetRing(t.Context(), &pb.GetRingRequest{Name: other})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	_, err = ask.GetRing(t.Context(), &pb.GetRingRequest{Name: "no-such-ring"})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "whether there is one is no business of everybody")
	_, err = ask.ListRings(t.Context(), &pb.ListRingsRequest{})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "that is about all rings")
	_, err = ask.Locate(t.Context(), &pb.LocateRequest{Object: object})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "so is that")
	_, err = ask.Locate(t.Context(), &pb.LocateRequest{Ring: mine, Object: object})
	require.NotEqual(t, codes.PermissionDenied, status.Code(err))

	// Every query of a stream is checked.
	stream, err := ask.LocateAll(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.LocateAllRequest{Id: "1", Question: &pb.LocateRequest{Ring: mine, Object: object}}))
	res, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, "1", res.GetId())
	require.NoError(t, stream.Send(&pb.LocateAllRequest{Id: "2",
		Question: &pb.LocateRequest{Ring: other, Object: object}}))
	_, err = stream.Recv()
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, other)
}

// role creates a role for one ring and returns its name.
func (s *secured) role(ring string) string {
	s.t.Helper()

	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterrings/diagnostics"},
			ResourceNames: []string{ring}, Verbs: []string{"get"},
		}},
	}
	s.make(role)

	return role.Name
}

func TestWatcherThatLosesItsRightGetsNoMore(t *testing.T) {
	s := startSecured(t)
	ring, namespace := s.makeRing(configMaps())

	for name, lose := range map[string]struct {
		how  func(c *caller) error
		want codes.Code
	}{
		"right": {func(c *caller) error { return s.plane.Client.Delete(t.Context(), c.grant) }, codes.PermissionDenied},
		"token": {func(c *caller) error { return s.plane.Client.Delete(t.Context(), c.ServiceAccount) },
			codes.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.caller(viewerRole)
			conn := s.connect(bearer(c.token))
			s.asks(conn, ring, codes.OK)
			stream, err := pb.NewDiagnosticsServiceClient(conn).WatchRing(t.Context(), &pb.WatchRingRequest{Name: ring})
			require.NoError(t, err)
			_, err = stream.Recv()
			require.NoError(t, err)

			require.NoError(t, lose.how(c))
			s.asks(conn, ring, lose.want)
			require.NoError(t, s.shard(ring, namespace, "shard-of-"+name).Acquire(t.Context()))

			_, err = stream.Recv()
			require.Equal(t, lose.want, status.Code(err), err)
		})
	}
}

func TestHealthIsForEverybodyAndReflectionForThoseWhoAreKnown(t *testing.T) {
	s := startSecured(t)
	reflect := func(conn *grpc.ClientConn) error {
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		require.NoError(t, err)

		_ = stream.CloseSend()
		_, err = stream.Recv()

		return err
	}

	anonymous := s.connect()
	_, err := healthpb.NewHealthClient(anonymous).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, codes.Unauthenticated, status.Code(reflect(anonymous)))
	require.ErrorIs(t, reflect(s.connect(bearer(s.caller("").token))), io.EOF)
}

func TestTokensDoNotTravelInTheClear(t *testing.T) {
	plane := localplane.Shared(t)

	done, cancel := execute(t, io.Discard, "--kubeconfig", plane.ServiceKubeconfig(t, "ringquery"), "--plaintext",
		"--grpc-bind-address", ":0", "--metrics-bind-address", "0", "--health-probe-bind-address", "0")
	defer cancel()
	require.Eventually(t, func() bool { return len(done) > 0 }, patience, interval)
	require.ErrorContains(t, <-done, "in the clear")

	s := launch(t, "--plaintext") // on the loopback
	s.use(s.dial(insecure.NewCredentials()))
	s.waitHealth(healthpb.HealthCheckResponse_SERVING)
	_, err := s.ListRings(t.Context(), &pb.ListRingsRequest{})
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}
