package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/shard/ordinal"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/lab/localplane"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

func TestHelp(t *testing.T) {
	var out bytes.Buffer

	_, err := parse([]string{"--help"}, &out)
	require.ErrorIs(t, err, pflag.ErrHelp)
	require.Contains(t, out.String(), "Usage: ordinals [flags]")
	require.Contains(t, out.String(), "--pod-name")
}

func TestExitCodes(t *testing.T) {
	require.Equal(t, 0, start([]string{"--help"}))
	require.Equal(t, 1, start([]string{"--no-such-flag"}))
}

func TestBadInput(t *testing.T) {
	kubeconfig := localplane.Shared(t).Kubeconfig()

	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--slots=2"}, "unknown flag: --slots; see --help"},
		{"argument", []string{"a"}, `unexpected argument "a"`},
		{"concurrency", []string{"--concurrency=0"}, "at least 1"},
		{"log level", []string{"--log-level=loud"}, "debug, info, or error"},
		{"a Pod of a Deployment", []string{"--pod-name=web-7d4b9c6f5-x2xkq", "--namespace=default"}, "Run the controller as a StatefulSet, or share its objects by a ring"},
		{"no StatefulSet", []string{"--pod-name=web-0", "--namespace=default"}, "no StatefulSet default/web exists, which Pod web-0 should belong to"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := parse(append(tc.args, "--kubeconfig="+kubeconfig), &bytes.Buffer{})

			var log logr.Logger
			if err == nil {
				log, err = o.Logger()
			}

			if err == nil {
				err = run(t.Context(), o, log)
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// One of two replicas runs, with the permissions of deploy/example-ordinals: it works on the objects of its ordinal, and on no other.
func TestReplica(t *testing.T) {
	p := localplane.Shared(t)
	require.NoError(t, p.Install(t.Context(), "deploy/example-ordinals"))
	require.NoError(t, v1alpha1.AddToScheme(p.Client.Scheme()))

	kubeconfig, err := p.PodKubeconfig(t.Context(), "example-ordinals", "website", "website-1")
	require.NoError(t, err)

	probes, records := localplane.FreeAddress(t), filepath.Join(t.TempDir(), "history.jsonl")

	o, err := parse([]string{
		"--kubeconfig=" + kubeconfig, "--pod-name=website-1", "--namespace=example-ordinals", "--log-level=error", "--metrics-bind-address=0",
		"--health-probe-bind-address=" + probes, "--history-file=" + records,
	}, &bytes.Buffer{})
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)

	go func() { stopped <- run(ctx, o, testr.New(t)) }()

	defer func() {
		stop()
		require.NoError(t, <-stopped)
	}()

	for n := range 12 {
		require.NoError(t, p.Client.Create(t.Context(), &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: "example-ordinals", Name: fmt.Sprintf("site-%d", n)}, Spec: v1alpha1.WebsiteSpec{Title: "Title"},
		}))
	}

	gk := v1alpha1.SchemeGroupVersion.WithKind("Website").GroupKind()
	hash := func(site *v1alpha1.Website) uint64 { return ordinal.Key(gk, site) % 3 }

	var sites v1alpha1.WebsiteList

	require.Eventually(t, func() bool {
		require.NoError(t, p.Client.List(t.Context(), &sites))

		for i := range sites.Items {
			if hash(&sites.Items[i]) == 1 && !rendered(t, p.Client, &sites.Items[i]) {
				return false
			}
		}

		return true
	}, patience, interval, "each Website of ordinal 1 has its ConfigMap, with its checksum")

	var reader history.Reader
	require.NoError(t, reader.ReadFile(records))
	require.NotEmpty(t, reader.Spans())

	mine := map[string]bool{}
	for i := range sites.Items {
		mine[sites.Items[i].Name] = hash(&sites.Items[i]) == 1
	}

	for _, span := range reader.Spans() {
		if span.Namespace == "example-ordinals" {
			require.True(t, mine[span.Name], "%s belongs to another Pod", span)
		}
	}

	answer, err := http.Get("http://" + probes + "/readyz")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

func rendered(t *testing.T, c client.Client, site *v1alpha1.Website) bool {
	t.Helper()

	page := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(site), page); err != nil {
		require.NoError(t, client.IgnoreNotFound(err))

		return false
	}

	sum, err := checksum.Of(website.Render(site.Spec))
	require.NoError(t, err)

	return page.Annotations[checksum.Annotation] == sum
}
