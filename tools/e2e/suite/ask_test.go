package suite_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// asked is how many Websites the plugin is asked about.
const asked = 10

// ask has the kubectl plugin, and then grpcurl, ask a ringquery pod, through the API server, who owns what. They ask as
// somebody who may do no more than that, and about another ring not even that.
func (s *suite) ask(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ring := s.ring(t, "ask", 2)
	require.NoError(t, s.AddWebsites(ctx, ring, "site", asked))
	s.complete(t, ring, 2)

	kubeconfig := s.asker(t, ring)
	plugin := s.plugin(ring, kubeconfig)
	objects, err := s.Objects(ctx, ring, nil)
	require.NoError(t, err)

	right := 0

	for _, o := range objects {
		if o.Kind != "Website" {
			continue
		}

		out, err := plugin(ctx, "locate", "websites/"+o.Name, "--ring", ring.Name, "-o", "json")
		require.NoError(t, err)

		var answer diagnosticsv1alpha1.LocateResponse
		require.NoError(t, protojson.Unmarshal([]byte(out), &answer), out)
		require.Len(t, answer.GetLocations(), 1, out)

		if assert.Equal(t, o.Shard, answer.GetLocations()[0].GetShard(), "of Website %s", o.Name) {
			right++
		}
	}
	s.demand(t, report.Figure{Name: "owners named by kubectl ring, of 10", Value: right, Limit: "all, as labelled",
		Kept: right == asked})

	why, err := plugin(ctx, "explain", "websites/site-0", "--ring", ring.Name)
	require.NoError(t, err)

	named := strings.Contains(why, objects[0].Shard)
	s.demand(t, report.Figure{Name: "kubectl ring explains with the shard's name", Value: named,
		Limit: "true", Kept: named})

	_, err = plugin(ctx, "get", cluster.Example.Name)
	require.ErrorContains(t, err, "PERMISSION_DENIED")
	s.demand(t, report.Figure{Name: "asking about another's ring", Value: "refused", Limit: "refused", Kept: true})
	s.askByHand(t, ring, kubeconfig)
}

// askByHand has grpcurl ask through kubectl port-forward, with a token and the authority that everybody may read.
func (s *suite) askByHand(t *testing.T, ring cluster.Ring, kubeconfig string) {
	t.Helper()
	ctx := t.Context()

	address, stop, err := s.Forward(ctx, cluster.Forward{Kubeconfig: kubeconfig, Namespace: system,
		Target: "service/ringquery", Port: 8090})
	defer stop()
	require.NoError(t, err)
	authority, err := s.Kubectl(ctx, "--kubeconfig", kubeconfig, "-n", system, "get", "configmap", "ringquery-ca", "-o",
		`jsonpath={.data.ca\.crt}`)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(file, []byte(authority), 0o600))

	token, err := s.Kubectl(ctx, "--kubeconfig", kubeconfig, "-n", ring.Namespace(), "create", "token", "asker",
		"--audience", diagnosticsv1alpha1.TokenAudience)
	require.NoError(t, err)

	site := s.website(t, ring, "site-0")
	question, err := protojson.Marshal(&diagnosticsv1alpha1.LocateRequest{Ring: ring.Name,
		Object: &diagnosticsv1alpha1.ObjectReference{
			Group: v1alpha1.SchemeGroupVersion.Group, Type: &diagnosticsv1alpha1.ObjectReference_Resource{Resource: "websites"},
			Namespace: ring.Namespace(), Name: "site-0",
		}})
	require.NoError(t, err)

	grpcurl := func(more ...string) (string, error) {
		args := append([]string{"-cacert", file, "-authority", "ringquery." + system + ".svc", "-d", string(question)},
			more...)

		return cluster.CommandWith(ctx, []string{"TOKEN=" + strings.TrimSpace(token)}, s.program("grpcurl"),
			append(args, address, diagnosticsv1alpha1.DiagnosticsService_Locate_FullMethodName[1:])...)
	}
	_, err = grpcurl()
	require.ErrorContains(t, err, "Unauthenticated")
	s.demand(t, report.Figure{Name: "grpcurl through port-forward, without a token", Value: "refused",
		Limit: "refused", Kept: true})

	out, err := grpcurl("-expand-headers", "-H", "authorization: Bearer ${TOKEN}")
	require.NoError(t, err)

	var answer diagnosticsv1alpha1.LocateResponse
	require.NoError(t, protojson.Unmarshal([]byte(out), &answer), out)
	require.Len(t, answer.GetLocations(), 1, out)
	shard := answer.GetLocations()[0].GetShard()
	pods, err := s.Pods(ctx, ring.Shards)
	require.NoError(t, err)

	running := slices.ContainsFunc(pods, func(p corev1.Pod) bool {
		return p.Name == shard &&
			p.Status.Phase == corev1.PodRunning
	})
	s.demand(t, report.Figure{
		Name: "grpcurl through port-forward, owner of a Website", Value: shard,
		Limit: "the shard of its label, a running pod", Kept: running && shard == site.Labels[contract.ShardLabel(ring.Name)],
	})
}

// website returns a Website of the ring's namespace.
func (s *suite) website(t *testing.T, ring cluster.Ring, name string) *v1alpha1.Website {
	t.Helper()

	site := &v1alpha1.Website{}
	require.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Namespace: ring.Namespace(), Name: name}, site))

	return site
}

// asker returns the path of a kubeconfig of somebody who may do no more than ask about the ring.
func (s *suite) asker(t *testing.T, ring cluster.Ring) string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	outside, err := s.AddAsker(t.Context(), ring, "asker", kubeconfig)
	t.Cleanup(func() {
		for _, o := range outside {
			assert.NoError(t, client.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(t.Context()), o)))
		}
	})
	require.NoError(t, err)

	return kubeconfig
}

// plugin returns a function that runs the kubectl plugin as the kubeconfig says.
func (s *suite) plugin(ring cluster.Ring, kubeconfig string) func(ctx context.Context, args ...string) (string, error) {
	return func(ctx context.Context, args ...string) (string, error) {
		return cluster.Command(ctx, s.program("kubectl-ring"),
			append(args, "--kubeconfig", kubeconfig, "-n", ring.Namespace(), "--service-account", ring.Namespace()+"/asker")...)
	}
}

// keepAsking asks about the ring, one question after the other, each over a connection of its own. What it returns
// stops that, and says how many were answered and what went wrong with the others.
func (s *suite) keepAsking(t *testing.T, ring cluster.Ring) (stop func() (answers int, failures []string)) {
	t.Helper()
	plugin := s.plugin(ring, s.asker(t, ring))
	ctx, cancel := context.WithCancel(t.Context())

	var (
		group    sync.WaitGroup
		answers  int
		failures []string
	)
	group.Go(func() {
		for ctx.Err() == nil {
			_, err := plugin(ctx, "get", ring.Name)
			switch {
			case err == nil:
				answers++
			case ctx.Err() == nil:
				failures = append(failures, err.Error())
			}
		}
	})
	t.Cleanup(cancel)

	return func() (int, []string) {
		cancel()
		group.Wait()

		return answers, failures
	}
}
