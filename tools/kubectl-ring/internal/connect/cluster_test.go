package connect_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	testclock "k8s.io/utils/clock/testing"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// cluster is a namespace of the real API server.
type cluster struct {
	t     *testing.T
	plane *localplane.Plane
	core  *typedcorev1.CoreV1Client
	ns    string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	plane := localplane.Shared(t)
	core, err := typedcorev1.NewForConfig(plane.Config)
	require.NoError(t, err)

	return &cluster{t, plane, core, plane.Namespace(t)}
}

func (c *cluster) service(name string, ports ...corev1.ServicePort) *corev1.Service {
	c.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.ns, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "ringquery"},
		},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: ports},
	}
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), service))

	return service
}

// state is the state of a pod.
type state struct {
	ready bool
	phase corev1.PodPhase
	node  string
}

func (c *cluster) pod(app, name string, s state) {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: s.node, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "ringquery", Image: "ringquery", Ports: []corev1.ContainerPort{
					{Name: "metrics", ContainerPort: 8080}, {Name: "grpc", ContainerPort: 8090},
				},
			}},
		},
	}
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), pod))

	status := corev1.ConditionFalse
	if s.ready {
		status = corev1.ConditionTrue
	}

	pod.Status.Phase = s.phase
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	require.NoError(c.t, c.plane.Client.Status().Update(c.t.Context(), pod))
}

func grpcServicePort() corev1.ServicePort {
	return corev1.ServicePort{Name: "grpc", Port: 443, TargetPort: intstr.FromString("grpc")}
}

// TestServiceIsFound finds a Service by its label, if it is the only one.
func TestServiceIsFound(t *testing.T) {
	c := newCluster(t)
	_, err := connect.FindService(t.Context(), c.core, c.ns)
	require.ErrorContains(t, err, "namespace "+c.ns+" has no Service with the label app.kubernetes.io/name=ringquery")

	c.service("query", grpcServicePort())
	found, err := connect.FindService(t.Context(), c.core, c.ns)
	require.NoError(t, err)
	require.Equal(t, "query", found.Name)

	c.service("other", grpcServicePort())
	_, err = connect.FindService(t.Context(), c.core, c.ns)
	require.ErrorContains(t, err, "several Services with the label app.kubernetes.io/name=ringquery: other, query")

	nobody := rest.CopyConfig(c.plane.Config)
	nobody.Impersonate.UserName = "nobody"
	core, err := typedcorev1.NewForConfig(nobody)
	require.NoError(t, err)
	_, err = connect.FindService(t.Context(), core, c.ns)
	require.ErrorContains(t, err, "forbidden")
	require.ErrorContains(t, err, "request permission to list services")

	nowhere, err := typedcorev1.NewForConfig(withToken())
	require.NoError(t, err)
	_, err = connect.FindService(t.Context(), nowhere, c.ns)
	require.ErrorContains(t, err, "check the kubeconfig")
}

func TestReadyPodIsFound(t *testing.T) {
	c := newCluster(t)
	service := c.service("query", grpcServicePort())

	var offered []int

	find := func(avoid string) (connect.Target, error) {
		return connect.FindPod(t.Context(), c.core, service, connect.Picker{Avoid: avoid, Choose: func(n int) int {
			offered = append(offered, n)
			return n - 1
		}})
	}
	c.pod("query", "starting", state{false, corev1.PodRunning, ""})
	c.pod("query", "pending", state{true, corev1.PodPending, ""})
	c.pod("query", "done", state{true, corev1.PodSucceeded, ""})
	c.pod("else", "stranger", state{true, corev1.PodRunning, ""})

	_, err := find("")
	require.ErrorContains(t, err, "has 3 pods, of which none is ready")
	require.ErrorContains(t, err, "kubectl get pods -n "+c.ns+" -l app=query")

	c.pod("query", "a", state{true, corev1.PodRunning, ""})

	target, err := find("a")
	require.NoError(t, err, "better the one to avoid than none")
	require.Equal(t, connect.Target{Namespace: c.ns, Pod: "a", Port: 8090}, target)

	c.pod("query", "b", state{true, corev1.PodRunning, ""})

	target, err = find("")
	require.NoError(t, err)
	require.Equal(t, "b", target.Pod)
	target, err = find("b")
	require.NoError(t, err)
	require.Equal(t, "a", target.Pod)
	require.Equal(t, []int{1, 2, 1}, offered)

	leaving := &corev1.Pod{}
	require.NoError(t, c.plane.Client.Get(t.Context(), key(c.ns, "b"), leaving))
	leaving.Finalizers = []string{"example.com/wait"}
	require.NoError(t, c.plane.Client.Update(t.Context(), leaving))
	require.NoError(t, c.plane.Client.Delete(t.Context(), leaving))

	target, err = find("")
	require.NoError(t, err)
	require.Equal(t, "a", target.Pod, "one that is about to stop is left alone")
}

func TestPortIsFound(t *testing.T) {
	c := newCluster(t)
	c.pod("query", "a", state{true, corev1.PodRunning, ""})

	metrics := corev1.ServicePort{Name: "metrics", Port: 80, TargetPort: intstr.FromString("metrics")}
	for want, ports := range map[string][]corev1.ServicePort{
		"8090":                         {grpcServicePort(), metrics},
		"8080":                         {metrics}, // the only one
		"9090":                         {{Port: 443, TargetPort: intstr.FromInt32(9090)}},
		"7070":                         {{Port: 7070}},
		"no port named nothing":        {{Port: 443, TargetPort: intstr.FromString("nothing")}},
		"2 ports, and none is named g": {metrics, {Name: "more", Port: 81}},
	} {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "query"},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "query"}, Ports: ports},
		}

		target, err := connect.FindPod(t.Context(), c.core, service, connect.Picker{Choose: func(int) int { return 0 }})
		if _, number := strconv.Atoi(want); number == nil {
			require.NoError(t, err, want)
			require.Equal(t, want, fmt.Sprint(target.Port))
		} else {
			require.ErrorContains(t, err, want)
		}
	}

	_, err := connect.FindPod(t.Context(), c.core,
		&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}, connect.Picker{})
	require.ErrorContains(t, err, "selects no pods")
}

// kubelet implements the part of a kubelet that port-forwarding needs. The streams of a pod's port lead to a server on
// this machine.
type kubelet struct {
	to      map[string]string // pod: address
	mu      sync.Mutex
	reached []string
}

// start runs it as a node of the cluster and returns the name of the node.
func (k *kubelet) start(c *cluster) string {
	c.t.Helper()

	web := httptest.NewUnstartedServer(k)
	web.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	web.StartTLS()
	c.t.Cleanup(web.Close)
	host, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(c.t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(c.t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.ns + "-node"}}
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), node))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	require.NoError(c.t, c.plane.Client.Status().Update(c.t.Context(), node))

	return node.Name
}

// ServeHTTP implements the kubelet's side of the port-forward protocol.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // portForward/NAMESPACE/POD
	if parts[0] != "portForward" || len(parts) != 3 {
		http.NotFound(w, req)
		return
	}

	if _, err := httpstream.Handshake(req, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}

	streams := make(chan httpstream.Stream, 2)

	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}

	defer func() { _ = conn.Close() }()

	problems, data := <-streams, <-streams
	k.mu.Lock()
	k.reached = append(k.reached, parts[2]+":"+data.Headers().Get(corev1.PortHeader))
	k.mu.Unlock()

	to, err := net.Dial("tcp", k.to[parts[2]])
	if err != nil {
		_, _ = problems.Write([]byte("nobody listens in the pod"))
		_ = problems.Close()
		<-conn.CloseChan()

		return
	}

	defer func() { _ = to.Close() }()

	go func() {
		_, _ = io.Copy(to, data)
		_ = to.Close()
	}()

	_, _ = io.Copy(data, to)
	_ = problems.Close()
}

func (k *kubelet) pods() []string {
	k.mu.Lock()
	defer k.mu.Unlock()

	return append([]string(nil), k.reached...)
}

// account creates a service account.
func (c *cluster) account(name string) {
	c.t.Helper()
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: name}}))
}

// asUser returns the configuration of a user with a token, and with the permissions of the Role ringquery-user and of
// all users.
func (c *cluster) asUser() *rest.Config {
	c.t.Helper()
	c.account("ringquery-reader")
	c.account("person")

	role := &rbacv1.Role{}
	require.NoError(c.t, c.plane.Client.Get(c.t.Context(), key("sharding-system", "ringquery-user"), role))
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "person"},
		Rules: append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"ringquery-ca"},
			Verbs: []string{"get"},
		}),
	}))
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "person"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "person"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: c.ns, Name: "person"}},
	}))
	path, err := c.plane.ServiceAccountKubeconfig(c.t.Context(), c.ns, "person")
	require.NoError(c.t, err)

	return fromFile(c.t, path)
}

// onlyForRingquery requires that the authorization is a token of ringquery-reader that ringquery accepts and the API
// server refuses.
func (c *cluster) onlyForRingquery(authorization string) {
	c.t.Helper()

	token, ok := strings.CutPrefix(authorization, "Bearer ")
	require.True(c.t, ok, authorization)

	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: token, Audiences: []string{"ringquery"},
	}}
	require.NoError(c.t, c.plane.Client.Create(c.t.Context(), review))
	require.True(c.t, review.Status.Authenticated, review.Status.Error)
	require.Equal(c.t, "system:serviceaccount:"+c.ns+":ringquery-reader", review.Status.User.Username)

	config := rest.AnonymousClientConfig(c.plane.Config)
	config.BearerToken = token
	api, err := authenticationclient.NewForConfig(config)
	require.NoError(c.t, err)
	_, err = api.SelfSubjectReviews().Create(c.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.True(c.t, apierrors.IsUnauthorized(err), "the API server accepts the token: %v", err)
}

// TestThroughTheAPIServer covers the whole path for a user with only the required permissions: the Service, a pod, the
// real API server, a kubelet, TLS with the CA in the ConfigMap, and a token of ringquery-reader.
func TestThroughTheAPIServer(t *testing.T) {
	c := newCluster(t)
	authority := newPKI(t, "query."+c.ns+".svc")
	s := serve(t, "127.0.0.1:0", grpc.Creds(authority.server(t)))
	k := &kubelet{to: map[string]string{"a": s.address, "b": s.address}}
	node := k.start(c)
	c.service("query", grpcServicePort())
	c.pod("query", "a", state{true, corev1.PodRunning, node})
	config := c.asUser()
	o := connect.Options{Namespace: c.ns}

	err := call(t, o, config)
	require.ErrorContains(t, err, "x509:", "nothing vouches for the server")
	require.Empty(t, s.tokens)

	require.NoError(t, c.plane.Client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "ringquery-ca"},
		Data:       map[string]string{"ca.crt": string(authority.pem)},
	}))
	require.NoError(t, call(t, o, config))

	token := s.last()
	c.onlyForRingquery(token)
	require.Equal(t, "a:8090", k.pods()[0])

	for label, o := range map[string]connect.Options{
		"--ca-file": {Namespace: c.ns, CAFile: authority.file(t)}, "not verified": {Namespace: c.ns, Insecure: true},
	} {
		require.NoError(t, call(t, o, config), label)

		token = s.last()
		c.onlyForRingquery(token)
	}

	asked := len(s.tokens)
	o.Account = c.ns + "/person"
	err = call(t, o, config)
	require.ErrorContains(t, err, "get a token of service account "+c.ns+"/person for ringquery")
	require.ErrorContains(t, err, "forbidden")
	require.ErrorContains(t, err, "request permission to create serviceaccounts/token")
	require.Len(t, s.tokens, asked, "without a token, nothing is asked")
}

// TestTunnelSaysWhatIsWrong verifies that the user gets the error of the kubelet or the API server.
func TestTunnelSaysWhatIsWrong(t *testing.T) {
	c := newCluster(t)
	k := &kubelet{to: map[string]string{"a": "127.0.0.1:1"}}
	node := k.start(c)
	c.pod("query", "a", state{true, corev1.PodRunning, node})
	c.pod("query", "homeless", state{true, corev1.PodRunning, ""})
	tunnel := connect.NewTunnel(c.plane.Config)

	conn, err := tunnel(t.Context(), connect.Target{Namespace: c.ns, Pod: "a", Port: 8090})
	require.NoError(t, err)
	_, err = io.ReadAll(conn)
	require.ErrorContains(t, err, "pod "+c.ns+"/a, port 8090: nobody listens in the pod")
	require.Equal(t, "port-forward", conn.RemoteAddr().Network())
	require.Equal(t, conn.LocalAddr(), conn.RemoteAddr())
	require.NoError(t, conn.Close())
	require.NoError(t, conn.Close(), "again")

	_, err = tunnel(t.Context(), connect.Target{Namespace: c.ns, Pod: "homeless", Port: 8090})
	require.ErrorContains(t, err, "port-forward to pod "+c.ns+"/homeless, port 8090")
	require.ErrorContains(t, err, "does not have a host assigned")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = tunnel(ctx, connect.Target{Namespace: c.ns, Pod: "a", Port: 8090})
	require.ErrorIs(t, err, context.Canceled)
}

// TestTokenIsReplaced verifies that a token is replaced before it expires.
func TestTokenIsReplaced(t *testing.T) {
	c := newCluster(t)
	c.account("ringquery-reader")

	s := serve(t, "127.0.0.1:0")
	clk := testclock.NewFakePassiveClock(time.Unix(0, 0))
	o := connect.Options{Namespace: c.ns, Endpoint: s.address, Plaintext: true, Clock: clk}
	conn, err := connect.Dial(t.Context(), &o, c.plane.Config, nil)

	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()

	for _, age := range []time.Duration{0, 30*time.Minute - 1, 30 * time.Minute, 45 * time.Minute, time.Hour} {
		clk.SetTime(time.Unix(0, 0).Add(age))

		_, err := pb.NewDiagnosticsServiceClient(conn).ListRings(t.Context(), &pb.ListRingsRequest{})
		require.NoError(t, err)
	}
	require.Equal(t, s.tokens[0], s.tokens[1])
	require.NotEqual(t, s.tokens[1], s.tokens[2])
	require.Equal(t, s.tokens[2], s.tokens[3])
	require.NotEqual(t, s.tokens[3], s.tokens[4])
	c.onlyForRingquery(s.tokens[4])

	require.NoError(t, c.plane.Client.Delete(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "ringquery-reader"}}))
	clk.SetTime(time.Unix(0, 0).Add(2 * time.Hour))

	_, err = pb.NewDiagnosticsServiceClient(conn).ListRings(t.Context(), &pb.ListRingsRequest{})
	require.ErrorContains(t, err, "get a token of service account "+c.ns+"/ringquery-reader for ringquery")
}
