package scrape_test

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/scrape"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const soon = 30 * time.Second

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// handler serves a native histogram as programs do, to those that have the token.
func handler(token string, seen *http.Header) http.Handler {
	registry := prometheus.NewRegistry()
	waits := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "waits", Help: "Waits.", Buckets: []float64{1}, NativeHistogramBucketFactor: 1.1,
	})
	registry.MustRegister(waits)
	waits.Observe(0.5)

	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*seen = r.Header

		if r.URL.Path != "/metrics" || token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "Authorization denied", http.StatusForbidden)
			return
		}

		metrics.ServeHTTP(w, r)
	})
}

// whole returns an error with its advice.
func whole(err error) string {
	var b strings.Builder
	failure.Print(&b, err)

	return b.String()
}

// TestURLs reads a page over HTTP and HTTPS, with and without what the server asks for.
func TestURLs(t *testing.T) {
	var seen http.Header

	server := httptest.NewUnstartedServer(handler("secret", &seen))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it reports clients that do not trust it
	server.StartTLS()

	defer server.Close()

	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

		return path
	}
	ca := file("ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	token := file("token", "secret\n")

	type trust = rest.TLSClientConfig

	for name, c := range map[string]struct {
		trust trust
		token string
		want  string // of the error; empty: none
	}{
		"verified, with the token":         {trust{CAFile: ca}, token, ""},
		"any certificate":                  {trust{Insecure: true}, token, ""}, // on this machine
		"verified for a name":              {trust{CAFile: ca, ServerName: "example.com"}, token, ""},
		"another name":                     {trust{CAFile: ca, ServerName: "other.example"}, token, "--server-name"},
		"not verified":                     {trust{}, token, "--ca-file"},
		"without the token":                {trust{CAFile: ca}, "", "the metrics are protected"},
		"a token with a control character": {trust{CAFile: ca}, file("bad", "a\nb"), "invalid header field value"},
		"no token":                         {trust{CAFile: ca}, filepath.Join(dir, "none"), "name a file that you can read"},
		"no CA certificates": {
			trust{CAFile: token}, token, "check the kubeconfig, or the flags about certificates",
		},
	} {
		t.Run(name, func(t *testing.T) {
			page, err := read(t, server.URL, &rest.Config{TLSClientConfig: c.trust}, c.token)
			if c.want == "" {
				require.NoError(t, err)
				require.NotNil(t, page["waits"].GetMetric()[0].GetHistogram().Schema, "native histograms are asked for")

				return
			}

			require.Error(t, err)
			require.Contains(t, whole(err), c.want)
		})
	}

	plain := httptest.NewServer(handler("", &seen))
	defer plain.Close()

	_, err := read(t, plain.URL, &rest.Config{UserAgent: "me"}, "")
	require.NoError(t, err)
	require.Empty(t, seen.Get("Authorization"))
	require.Equal(t, "me", seen.Get("User-Agent"))

	_, err = read(t, "http://127.0.0.1:1", &rest.Config{}, "")
	require.Contains(t, whole(err), "check the address")
}

// read reads the page at a URL.
func read(t *testing.T, url string, config *rest.Config, token string) (advise.Page, error) {
	t.Helper()

	config.Timeout = soon

	targets, err := scrape.URLs([]string{url}, config, token)
	if err != nil {
		return nil, err
	}

	return targets[0].Read(t.Context())
}

// TestTokenGoesToVerifiedServersOnly verifies that a token does not go to another machine without TLS that is verified.
func TestTokenGoesToVerifiedServersOnly(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))

	for url, c := range map[string]struct{ insecure, ok bool }{
		"http://localhost:1": {false, true}, "http://[::1]:1": {false, true}, "https://192.0.2.7": {false, true},
		"https://127.0.0.1": {true, true},
		"http://192.0.2.7":  {false, false}, "http://localhost.example": {false, false}, "https://192.0.2.8": {true, false},
	} {
		_, err := scrape.URLs([]string{url}, &rest.Config{
			Timeout: soon, TLSClientConfig: rest.TLSClientConfig{Insecure: c.insecure},
		}, token)
		require.Equal(t, c.ok, err == nil, url)
	}
}

// address returns an address of this machine that is not that of the loopback interface, to which the API server
// connects nothing.
func address(t *testing.T) string {
	t.Helper()

	all, err := net.InterfaceAddrs()
	require.NoError(t, err)

	for _, a := range all {
		if network, ok := a.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}

	return "0.0.0.0" // this machine, without a network
}

// TestPods reads a page through the real API server.
func TestPods(t *testing.T) {
	plane := localplane.Shared(t)
	namespace := plane.Namespace(t)

	var seen http.Header

	listener, err := net.Listen("tcp", net.JoinHostPort(address(t), "0"))
	require.NoError(t, err)

	server := &httptest.Server{
		Listener: listener, Config: &http.Server{Handler: handler("", &seen), ReadHeaderTimeout: time.Minute},
	}
	server.Start()

	defer server.Close()

	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)

	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)

	create := func(name string, ready corev1.ConditionStatus) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "x"}},
			Spec: corev1.PodSpec{AutomountServiceAccountToken: new(false), Containers: []corev1.Container{
				{Name: "side", Image: "side"},
				{
					Name: "manager", Image: "manager", Ports: []corev1.ContainerPort{{Name: "http-metrics", ContainerPort: int32(number)}}, //nolint:gosec // a port
					Resources: corev1.ResourceRequirements{
						Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")},
					},
				},
			}},
		}
		require.NoError(t, plane.Client.Create(t.Context(), pod))

		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: host, PodIPs: []corev1.PodIP{{IP: host}}, HostIP: host,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		}
		require.NoError(t, plane.Client.Status().Update(t.Context(), pod))
	}

	pods := scrape.Pods{Namespace: namespace, Selector: "app=x", Port: "http-metrics"}
	config := rest.CopyConfig(plane.Config)
	config.Timeout = soon

	create("starts", corev1.ConditionFalse)

	_, err = pods.Find(t.Context(), config)
	require.ErrorContains(t, err, "of 1 pods")

	create("runs", corev1.ConditionTrue)

	targets, err := pods.Find(t.Context(), config)
	require.NoError(t, err)
	require.Len(t, targets, 1)
	require.Equal(t, "pod runs", targets[0].Name)
	require.InDelta(t, 1.5, targets[0].CPULimit, 1e-9)

	page, err := targets[0].Read(t.Context())
	require.NoError(t, err)
	require.NotNil(t, page["waits"].GetMetric()[0].GetHistogram().Schema, "native histograms come through")
	require.Empty(t, seen.Get("Authorization"), "the credentials are for the API server alone")

	pods.Port = "1" // which nobody declares
	targets, err = pods.Find(t.Context(), config)
	require.NoError(t, err)
	require.Zero(t, targets[0].CPULimit, "it is not known which container has the port")

	_, err = targets[0].Read(t.Context())
	require.Contains(t, whole(err), "check that it is the metrics page of a controller, its path and its port")

	pods.Port = port
	permissions(t, plane, pods)
}

// permissions verifies that errors name the permission that is missing.
func permissions(t *testing.T, plane *localplane.Plane, pods scrape.Pods) {
	t.Helper()

	user := rest.CopyConfig(plane.Config)
	user.Timeout = soon
	user.Impersonate.UserName = "reader-of-" + pods.Namespace

	_, err := pods.Find(t.Context(), user)
	require.ErrorContains(t, err, "forbidden")
	require.Contains(t, whole(err), "request the permissions to list pods and to get pods/proxy")

	require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: pods.Namespace, Name: "pods"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}},
	}))
	require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pods.Namespace, Name: "pods"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "pods"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.Impersonate.UserName}},
	}))

	var targets []scrape.Target

	require.Eventually(t, func() bool {
		targets, err = pods.Find(t.Context(), user)
		return err == nil
	}, soon, 20*time.Millisecond)

	_, err = targets[0].Read(t.Context())
	require.ErrorContains(t, err, "the API server answered")
	require.Contains(t, whole(err), "request the permissions to list pods and to get pods/proxy")
}
