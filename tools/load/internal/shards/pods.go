package shards

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/tools/lab/localplane/kubelettest"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// addPod creates the Pod of a shard, which nothing runs, and returns its uid.
func (f *Fleet) addPod(ctx context.Context, name string) (types.UID, error) {
	pod := kubelettest.Pod(f.Ring.Namespace, name)
	if err := f.options.Client.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("create Pod %s: %w", name, err)
	}

	return pod.UID, nil
}

// End reports that the Pod of a shard has ended, as the kubelet does. The ring must have Pods.
func (f *Fleet) End(ctx context.Context, name string) error {
	f.mu.Lock()
	delete(f.held, name)
	f.mu.Unlock()

	return f.options.Objects.MergePatch(ctx, objects.Pods.Path(f.Ring.Namespace, name)+"/status", map[string]any{"status": kubelettest.Ended()})
}

// showPods lets the lease monitor watch the Pods of the ring's shards.
func (f *Fleet) showPods(ctx context.Context) error {
	if err := f.options.Client.Create(ctx, kubelettest.Binding(f.Ring.Namespace)); err != nil {
		return fmt.Errorf("let the lease monitor watch the Pods of ring %s: %w", f.Ring.Name, err)
	}

	return nil
}
