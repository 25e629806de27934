package scenario

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/lab/program"
)

// play runs a program as the shards of its ring.
func (s *Story) play(ctx context.Context, p program.Program) {
	p.Objects = 200
	p.Manifests = append(p.Manifests, "tools/operators/deploy/"+p.Name+".yaml")

	s.deleteRing(ctx)
	program.Stage{System: s.system.System, BinDir: s.system.BinDir, Until: s.until, OK: s.ok}.Play(ctx, p)
}

// definition returns the path of a program's CustomResourceDefinition.
func (s *Story) definition(name string) string {
	return filepath.Join(s.system.BinDir, name+".crd.yaml")
}

// jobset runs the controllers of JobSet.
func (s *Story) jobset(ctx context.Context) {
	s.play(ctx, program.Program{
		Name: "jobset", Manifests: []string{s.definition("jobset")},
		Object: `{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {namespace: jobset}, spec: {
            suspend: true, network: {enableDNSHostnames: true}, replicatedJobs: [{name: main, replicas: 1, template: {
            spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: none.example.com/main}]}}}}}]}}`,
		Children: []schema.GroupVersionKind{{Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Service"}},
	})
}

// clientGo runs a controller that consists of an informer, a queue, and workers.
func (s *Story) clientGo(ctx context.Context) {
	s.play(ctx, program.Program{
		Name: "client-go", Object: `{apiVersion: v1, kind: ConfigMap, metadata: {namespace: client-go}}`,
		Children: []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}},
	})
}

// trustManager runs the controller of trust-manager.
func (s *Story) trustManager(ctx context.Context) {
	s.play(ctx, program.Program{
		Name: "trust-manager", Manifests: []string{s.definition("trust-manager")},
		Object: fmt.Sprintf(`{apiVersion: trust.cert-manager.io/v1alpha1, kind: Bundle, spec: {
            sources: [{inLine: %q}], target: {configMap: {key: ca.pem}, namespaceSelector: {
            matchLabels: {kubernetes.io/metadata.name: trust-manager}}}}}`, s.system.Plane.Config.CAData),
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
