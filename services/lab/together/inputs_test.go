package together_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/inputs"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// rendered is what a shard has made of a Website.
type rendered struct{ shard, site, text string }

// A ConfigMap that Websites name is an input of theirs, although ConfigMaps are a controlled kind: whichever shard it
// has, and if it has none, each change reaches the shards of the Websites, and no others.
func TestInputsReachTheShardsThatUseThem(t *testing.T) {
	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd"))

	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, examplev1alpha1.AddToScheme(scheme))
	admin, err := client.New(plane.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)

	namespace := plane.Namespace(t)
	at := func(shard, name, texts string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{},
			Annotations: map[string]string{inputs.Texts: texts}}
		if shard != "" {
			m.Labels[contract.ShardLabel(namespace)] = shard
		}

		return m
	}

	texts := map[string]*corev1.ConfigMap{}
	for name, shard := range map[string]string{"of-a": "a", "of-b": "b", "of-nobody": ""} {
		texts[name] = &corev1.ConfigMap{ObjectMeta: at(shard, name, ""), Data: map[string]string{"text": "first"}}
		require.NoError(t, admin.Create(t.Context(), texts[name]))

		site := &examplev1alpha1.Website{ObjectMeta: at("a", "uses-"+name, name),
			Spec: examplev1alpha1.WebsiteSpec{Title: name}}
		require.NoError(t, admin.Create(t.Context(), site))
	}

	seen := make(chan rendered, 1000)

	for _, name := range []string{"a", "b"} {
		mgr, err := shard.NewManager(plane.Config, ctrl.Options{
			Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
			Controller: config.Controller{SkipNameValidation: new(true)},
		}, shard.Options{
			Ring: namespace, Name: name, Namespace: namespace,
			Kinds: shard.Kinds{shard.Main(&examplev1alpha1.Website{}), shard.Controlled(&corev1.ConfigMap{})},
		})
		require.NoError(t, err)

		r := &inputs.Reconciler{Render: func(ctx context.Context, site *examplev1alpha1.Website,
			texts *corev1.ConfigMap) error {
			if other := texts.Labels[contract.ShardLabel(namespace)]; other != name {
				require.ErrorIs(t, mgr.GetClient().Get(ctx, client.ObjectKeyFromObject(texts), &corev1.ConfigMap{}),
					shard.ErrOtherShard,
					"the manager's client does not report it as missing")
			}
			seen <- rendered{name, site.Name, texts.Data["text"]}

			return nil
		}}
		require.NoError(t, r.SetupWithManager(t.Context(), mgr))

		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)

		go func() { ended <- mgr.Start(ctx) }()

		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}

	reaches := func(text string) {
		missing := map[rendered]bool{}
		for name := range texts {
			missing[rendered{"a", "uses-" + name, text}] = true
		}

		require.Eventually(t, func() bool {
			for {
				select {
				case r := <-seen:
					require.Equal(t, "a", r.shard, "the Websites are those of shard a")
					delete(missing, r)
				default:
					return len(missing) == 0
				}
			}
		}, patience, interval, "%v", missing)
	}
	reaches("first")

	for _, cm := range texts {
		cm.Data["text"] = "second"
		require.NoError(t, admin.Update(t.Context(), cm))
	}

	reaches("second")
}
