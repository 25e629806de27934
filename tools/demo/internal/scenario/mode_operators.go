package scenario

import (
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// jobset runs the controllers of JobSet.
func (s *Story) jobset(ctx context.Context) error {
	return s.share(ctx, &program{
		name: "jobset", manifests: []string{filepath.Join(s.system.BinDir, "jobset.crd.yaml"), "tools/operators/deploy/jobset.yaml"},
		objects: operatorObjects, object: object("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset", map[string]any{
			"suspend": true, "network": map[string]any{"enableDNSHostnames": true},
			"replicatedJobs": []any{map[string]any{"name": "main", "replicas": int64(1), "template": map[string]any{
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
					"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "none.example.com/main"}},
				}}},
			}}},
		}),
		children: []schema.GroupVersionKind{{Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Service"}},
	})
}

// clientGo runs a controller that consists of an informer, a queue, and workers.
func (s *Story) clientGo(ctx context.Context) error {
	return s.share(ctx, &program{
		name: "client-go", manifests: []string{"tools/operators/deploy/client-go.yaml"},
		objects: operatorObjects, object: object("v1", "ConfigMap", "client-go", nil),
		children: []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}},
	})
}

// operatorObjects is how many objects an operator has.
const operatorObjects = 200

// trustManager runs the controller of trust-manager.
func (s *Story) trustManager(ctx context.Context) error {
	return s.share(ctx, &program{
		name: "trust-manager", manifests: []string{filepath.Join(s.system.BinDir, "trust-manager.crd.yaml"), "tools/operators/deploy/trust-manager.yaml"},
		objects: operatorObjects, object: object("trust.cert-manager.io/v1alpha1", "Bundle", "", map[string]any{
			"sources": []any{map[string]any{"inLine": string(s.system.Plane.Config.CAData)}},
			"target": map[string]any{
				"configMap":         map[string]any{"key": "ca.pem"},
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "trust-manager"}},
			},
		}),
		done: func(o *unstructured.Unstructured) bool {
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
