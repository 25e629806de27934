package scenario

import (
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/lab/program"
)

// share runs a program as the shards of its ring.
func (s *Story) share(ctx context.Context, p program.Program) {
	s.deleteRing(ctx)
	program.Stage{System: s.system.System, BinDir: s.system.BinDir, Await: s.await, OK: s.ok}.Play(ctx, p)
}

// object returns a function that makes objects.
func object(apiVersion, kind, namespace string, spec map[string]any) func(string) *unstructured.Unstructured {
	return func(name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetNamespace(namespace)
		o.SetName(name)

		if spec != nil {
			o.Object["spec"] = spec
		}

		return o.DeepCopy()
	}
}

// jobset runs the controllers of JobSet.
func (s *Story) jobset(ctx context.Context) {
	s.share(ctx, program.Program{
		Name:      "jobset",
		Manifests: []string{filepath.Join(s.system.BinDir, "jobset.crd.yaml"), "tools/operators/deploy/jobset.yaml"},
		Objects:   operatorObjects, Object: object("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset", map[string]any{
			"suspend": true, "network": map[string]any{"enableDNSHostnames": true},
			"replicatedJobs": []any{map[string]any{"name": "main", "replicas": int64(1), "template": map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
					"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "none.example.com/main"}},
				}}},
			}}},
		}),
		Children: []schema.GroupVersionKind{{Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Service"}},
	})
}

// clientGo runs a controller that consists of an informer, a queue, and workers.
func (s *Story) clientGo(ctx context.Context) {
	s.share(ctx, program.Program{
		Name: "client-go", Manifests: []string{"tools/operators/deploy/client-go.yaml"},
		Objects: operatorObjects, Object: object("v1", "ConfigMap", "client-go", nil),
		Children: []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}},
	})
}

// operatorObjects is how many objects an operator has.
const operatorObjects = 200

// trustManager runs the controller of trust-manager.
func (s *Story) trustManager(ctx context.Context) {
	s.share(ctx, program.Program{
		Name: "trust-manager",
		Manifests: []string{
			filepath.Join(s.system.BinDir, "trust-manager.crd.yaml"), "tools/operators/deploy/trust-manager.yaml",
		},
		Objects: operatorObjects, Object: object("trust.cert-manager.io/v1alpha1", "Bundle", "", map[string]any{
			"sources": []any{map[string]any{"inLine": string(s.system.Plane.Config.CAData)}},
			"target": map[string]any{
				"configMap":         map[string]any{"key": "ca.pem"},
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "trust-manager"}},
			},
		}),
		Done: func(o *unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == "Synced" {
					return c["status"] == "True"
				}
			}

			return false
		},
	})
}
