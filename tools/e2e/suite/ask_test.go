package suite_test

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/lab/must"
	lab "github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// asked is how many Websites the plugin is asked about.
const asked = 10

// ask has the kubectl plugin ask a ringquery pod, through the API server, who owns what. It asks as somebody who may do
// no more than that, and about another ring not even that.
func (s *scene) ask() {
	s.Parallel()

	ctx, ring, label := s.Context(), s.ring("ask", 2), ""
	s.websites(ring, asked)
	s.complete(ring, 2)

	kubeconfig := s.asker(ring)
	plugin := func(args ...string) (string, error) {
		return cluster.Command(ctx, filepath.Join(s.bin, "kubectl-ring"), append(args, "--kubeconfig", kubeconfig,
			"-n", ring.Namespace(), "--service-account", ring.Namespace()+"/asker")...)
	}

	for i := range asked {
		site := lab.Website(ring.Namespace(), lab.Site(i))
		must.Do(s.Client.Get(ctx, client.ObjectKeyFromObject(site), site))

		label = site.Labels[contract.ShardLabel(ring.Name)]
		out := must.Get(plugin("locate", "websites/"+site.Name, "--ring", ring.Name, "-o", "json"))

		var answer diagnosticsv1alpha1.LocateResponse
		require.NoError(s, protojson.Unmarshal([]byte(out), &answer), out)
		require.Len(s, answer.GetLocations(), 1, out)
		assert.Equal(s, label, answer.GetLocations()[0].GetShard(), site.Name)
	}

	assert.Contains(s, must.Get(plugin("explain", "websites/"+lab.Site(asked-1), "--ring", ring.Name)), label)

	_, err := plugin("get", cluster.Example.Name)
	require.ErrorContains(s, err, "PERMISSION_DENIED")
}

// asker returns the path of a kubeconfig of somebody who may do no more than ask about the ring.
func (s *scene) asker(ring cluster.Ring) string {
	ctx, own, all := s.Context(), ring.Namespace(), ring.Name+"-asker"
	s.finally(func(ctx context.Context) { // the rest goes with the ring's namespace
		s.Kubectl(ctx, "delete", "clusterrole/"+all, "clusterrolebinding/"+all,
			"-n", system, "role/"+all, "role/"+all+"-forward", "rolebinding/"+all, "rolebinding/"+all+"-forward",
			"--ignore-not-found")
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
		s.Kubectl(ctx, append([]string{"create"}, args...)...)
	}

	token := s.Kubectl(ctx, "create", "token", "asker", "-n", own)

	kubeconfig := filepath.Join(s.TempDir(), "kubeconfig")
	require.NoError(s, localplane.WriteKubeconfig(kubeconfig, s.Config, strings.TrimSpace(token), ""))

	return kubeconfig
}
