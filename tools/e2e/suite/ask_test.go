package suite_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// asked is how many Websites the plugin is asked about.
const asked = 10

// ask has the kubectl plugin ask a ringquery pod, through the API server, who owns what. It asks as somebody who may do
// no more than that, and about another ring not even that.
func (s *suite) ask(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ring := s.ring(t, "ask", 2)
	require.NoError(t, s.AddWebsites(ctx, ring, asked))
	s.complete(t, ring, 2)

	kubeconfig := s.asker(t, ring)
	plugin := s.plugin(ring, kubeconfig)

	var sites v1alpha1.WebsiteList
	require.NoError(t, s.Client.List(ctx, &sites, client.InNamespace(ring.Namespace())))

	for i := range sites.Items {
		site := &sites.Items[i]
		out, err := plugin(ctx, "locate", "websites/"+site.Name, "--ring", ring.Name, "-o", "json")
		require.NoError(t, err)

		var answer diagnosticsv1alpha1.LocateResponse
		require.NoError(t, protojson.Unmarshal([]byte(out), &answer), out)
		require.Len(t, answer.GetLocations(), 1, out)
		assert.Equal(t, site.Labels[contract.ShardLabel(ring.Name)], answer.GetLocations()[0].GetShard(), site.Name)
	}

	why, err := plugin(ctx, "explain", "websites/site-0", "--ring", ring.Name)
	require.NoError(t, err)
	assert.Contains(t, why, sites.Items[0].Labels[contract.ShardLabel(ring.Name)])

	_, err = plugin(ctx, "get", cluster.Example.Name)
	require.ErrorContains(t, err, "PERMISSION_DENIED")
}

// asker returns the path of a kubeconfig of somebody who may do no more than ask about the ring.
func (s *suite) asker(t *testing.T, ring cluster.Ring) string {
	t.Helper()

	ctx, own, all := t.Context(), ring.Namespace(), ring.Name+"-asker"
	t.Cleanup(func() { // the rest goes with the ring's namespace
		_, err := s.Kubectl(context.WithoutCancel(ctx), "delete", "clusterrole/"+all, "clusterrolebinding/"+all,
			"-n", system, "role/"+all, "role/"+all+"-forward", "rolebinding/"+all, "rolebinding/"+all+"-forward",
			"--ignore-not-found")
		assert.NoError(t, err)
	})

	account := "--serviceaccount=" + own + ":asker"

	for _, args := range [][]string{
		{"serviceaccount", "asker", "-n", own},
		{"clusterrole", all, "--verb=get", "--resource=clusterrings.sharding.timebertt.dev/diagnostics",
			"--resource-name=" + ring.Name},
		{"clusterrolebinding", all, "--clusterrole=" + all, account},
		{"role", all, "-n", system, "--verb=get,list", "--resource=services,pods,configmaps"},
		{"rolebinding", all, "-n", system, "--role=" + all, account},
		{"role", all + "-forward", "-n", system, "--verb=create", "--resource=pods/portforward"},
		{"rolebinding", all + "-forward", "-n", system, "--role=" + all + "-forward", account},
		{"role", "asker", "-n", own, "--verb=create", "--resource=serviceaccounts/token", "--resource-name=asker"},
		{"rolebinding", "asker", "-n", own, "--role=asker", account},
	} {
		_, err := s.Kubectl(ctx, append([]string{"create"}, args...)...)
		require.NoError(t, err)
	}

	token, err := s.Kubectl(ctx, "create", "token", "asker", "-n", own)
	require.NoError(t, err)

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, localplane.WriteKubeconfig(kubeconfig, s.Config, strings.TrimSpace(token), ""))

	return kubeconfig
}

// plugin returns a function that runs the kubectl plugin as the kubeconfig says.
func (s *suite) plugin(ring cluster.Ring, kubeconfig string) func(ctx context.Context, args ...string) (string, error) {
	return func(ctx context.Context, args ...string) (string, error) {
		return cluster.Command(ctx, s.program("kubectl-ring"),
			append(args, "--kubeconfig", kubeconfig, "-n", ring.Namespace(), "--service-account", ring.Namespace()+"/asker")...)
	}
}
