package kit_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

// TestMistakes shows the one line that each mistake gives.
func TestMistakes(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")

	hint := "; see 'leasemonitor --help'\n"

	unreachable := writeKubeconfig(t, "https://127.0.0.1:1")
	for args, want := range map[string]string{
		"--frobnicate":         "error: unknown flag: --frobnicate" + hint,
		"start":                `error: unexpected argument "start": use flags` + hint,
		"--shutdown-grace=ten": `error: invalid argument "ten" for "--shutdown-grace" flag: time: invalid duration "ten"` + hint,
		"--shutdown-grace=0s":  "error: --shutdown-grace must be greater than 0, not 0s" + hint,
		"--shutdown-delay=-1s": "error: --shutdown-delay must not be negative, it is -1s" + hint,
		"--log-level=loud":     `error: --log-level must be debug, info, or error, not "loud"` + hint,
		"--log-format=xml":     `error: --log-format must be json or text, not "xml"` + hint,
		"--kube-api-qps=0":     "error: --kube-api-qps must be greater than 0, not 0" + hint,
		"--kube-api-burst=0":   "error: --kube-api-burst must be at least 1, not 0" + hint,
		"--default-namespace-selector=a==b==c": `error: --default-namespace-selector "a==b==c" is no label selector, such as sharding=enabled or kubernetes.io/metadata.name notin (a,b): ` +
			"couldn't parse the selector string \"a==b==c\": found '==', expected: ',' or 'end of string'" + hint,
		"--leader-elect-lease-duration=10s":  "error: --leader-elect-lease-duration (10s) must be greater than --leader-elect-renew-deadline (10s)" + hint,
		"--leader-elect-lease-duration=1.5s": "error: --leader-elect-lease-duration must be whole seconds, at least 1s, not 1.5s" + hint,
		"--leader-elect-renew-deadline=2s":   "error: --leader-elect-renew-deadline (2s) must be greater than 1.2 times --leader-elect-retry-period (2s)" + hint,
		"--leader-elect-retry-period=0s":     "error: --leader-elect-retry-period must be greater than 0, not 0s" + hint,
		"--log-level=x --log-format=y":       `error: --log-level must be debug, info, or error, not "x"; --log-format must be json or text, not "y"` + hint,
		"--kubeconfig=/does/not/exist":       "error: --kubeconfig /does/not/exist: no such file\n",
		"":                                   "error: no Kubernetes API server configured: set --kubeconfig or $KUBECONFIG, or run in a Pod\n",
		"--kubeconfig=" +
			unreachable: "error: cannot reach the Kubernetes API server at https://127.0.0.1:1: Get \"https://127.0.0.1:1/apis/sharding.timebertt.dev/v1alpha1?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused; check --kubeconfig and that the server runs\n",
	} {
		t.Run(args, func(t *testing.T) {
			all := strings.Fields(args)
			if !strings.Contains(args, "-address") {
				all = append(all, "--metrics-bind-address=0", "--health-probe-bind-address=0")
			}

			code, stdout, stderr := runMain(kit.Service{Name: service, LeaderElection: true, Setup: nothing}, all...)
			require.Equal(t, 1, code)
			require.Equal(t, want, stderr)
			require.Empty(t, stdout)
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	s := kit.Service{
		Name: "ringquery", Short: "Who owns what, and why?", Long: "The query service answers.",
		Example: "  ringquery --kubeconfig ~/.kube/config",
		Setup:   nothing,
	}
	code, stdout, _ := runMain(s, "--help")
	require.Equal(t, 0, code)

	for _, want := range []string{"The query service answers.", "ringquery --kubeconfig",
		"--health-probe-bind-address address", "--shutdown-delay time"} {
		require.Contains(t, stdout, want)
	}
	require.NotContains(t, stdout, "leader-elect", "a service without leader election has no flags for it")

	code, stdout, _ = runMain(s, "--version")
	require.Equal(t, 0, code)
	require.Regexp(t, `^ringquery dev \(go1\.\S+\)\n$`, stdout)
}

func TestMissingCRD(t *testing.T) {
	bare, err := localplane.Start(localplane.Options{Knows: v1alpha1.AddToScheme})

	require.NoError(t, err)
	defer func() { require.NoError(t, bare.Stop()) }()

	code, _, stderr := runMain(kit.Service{Name: service, Setup: nothing},
		"--kubeconfig="+bare.Kubeconfig(), "--metrics-bind-address=0", "--health-probe-bind-address=0")
	require.Equal(t, 1, code)
	require.Equal(t, "error: the API server at "+strings.TrimSuffix(bare.Config.Host,
		"/")+" does not serve clusterrings.sharding.timebertt.dev/v1alpha1; apply deploy/base/crd first\n", stderr)
}

func TestRejectedCredentials(t *testing.T) {
	p := localplane.Shared(t)
	content, err := os.ReadFile(p.ServiceKubeconfig(t, service))
	require.NoError(t, err)
	config, err := clientcmd.Load(content)
	require.NoError(t, err)

	for _, user := range config.AuthInfos {
		user.Token = "forged"
	}

	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))

	code, _, stderr := runMain(kit.Service{Name: service, Setup: nothing}, "--kubeconfig="+path,
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "does not accept the credentials; check that the token or certificate in --kubeconfig "+
		"is valid")
}

// TestSignals runs the service as a process: the first signal stops it gracefully, the second at once.
func TestSignals(t *testing.T) {
	p := startProcess(t, kubeconfig(t), "--leader-elect=false")
	p.waitStatus(t, http.StatusOK)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Wait(), "%s", p.out)
	require.Contains(t, p.out.String(), `"msg":"Stopped"`)
	require.NotContains(t, p.out.String(), `"level":"error"`)

	p = startProcess(t, kubeconfig(t), "--leader-elect=false", "--shutdown-delay=1h")
	p.waitStatus(t, http.StatusOK)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	p.waitStatus(t, http.StatusInternalServerError)

	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()

	require.Eventually(t, func() bool { // the first one may not have restored the effect of the next ones yet
		_ = p.cmd.Process.Signal(os.Interrupt)
		return len(ended) > 0
	}, soon, tick)
	require.EqualError(t, <-ended, "signal: interrupt")
}

// TestStopsWhileCachesAreNotFilled: a service that waits for rights ends when it is told to, without waiting any
// longer.
func TestStopsWhileCachesAreNotFilled(t *testing.T) {
	plane := localplane.Shared(t)
	namespace := plane.Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nobody"}}
	require.NoError(t, plane.Client.Create(t.Context(), account))
	path, err := plane.ServiceAccountKubeconfig(t.Context(), namespace, account.Name)
	require.NoError(t, err)

	p := startProcess(t, "--kubeconfig="+path, "--shutdown-delay=1h", "--shutdown-grace=1h")
	p.waitStatus(t, http.StatusInternalServerError)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Wait(), "%s", p.out)
}

// childProcess is a service that runs as a process of its own.
type childProcess struct {
	cmd    *exec.Cmd
	out    *output.Buffer
	health string
}

func startProcess(t *testing.T, args ...string) *childProcess {
	t.Helper()
	p := &childProcess{out: &output.Buffer{}, health: localplane.FreeAddress(t)}
	args = append(args, "--health-probe-bind-address="+p.health, "--metrics-bind-address=0")
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], args...)

	p.cmd.Env = append(os.Environ(), asService+"=1")
	p.cmd.Stderr = p.out
	require.NoError(t, p.cmd.Start())

	return p
}

// waitStatus waits until /readyz answers with the status.
func (p *childProcess) waitStatus(t *testing.T, status int) {
	t.Helper()
	require.Eventually(t, func() bool { code, _ := get("http://" + p.health + "/readyz"); return code == status }, soon,
		tick, "%s", p.out)
}

// writeKubeconfig returns the path of a kubeconfig that names the server and nothing else.
func writeKubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		CurrentContext: "c",
	}, path))

	return path
}
