package shard

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"time"
)

func (s *Shard) follow(o *cache.Options, kinds map[schema.GroupKind]Kind) error {
	_ = kinds
	s.handover.follow(o, o.Scheme, s.liveReader)
	inner := o.NewInformer
	o.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		ctxlw := toolscache.ToListerWatcherWithContext(lw)
		return inner(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				s.TweakListOptions(&o)
				return ctxlw.ListWithContext(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				s.TweakListOptions(&o)
				return ctxlw.WatchWithContext(ctx, o)
			},
		}, obj, resync, indexers)
	}
	return nil
}

var _ metadata.Interface
