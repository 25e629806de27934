package shard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestRunKeepsTheLeaseWhileItsWorkStops(t *testing.T) {
	broken := errors.New("broken")
	for name, want := range map[string]error{"when the work is done": nil, "when it failed": broken} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			began, proceed := make(chan struct{}), make(chan struct{})
			p := f.launch(func(ctx context.Context) error {
				return f.shard("shard-0").Run(ctx, f.config, func(ctx context.Context) error {
					close(began)
					<-ctx.Done()
					<-proceed

					return want
				})
			})
			receive(f, began, "it works")
			p.cancel()

			before := f.leaseOf("shard-0").Spec.RenewTime.Time
			f.eventually("the Lease is renewed after the stop",
				func() bool { return f.leaseOf("shard-0").Spec.RenewTime.After(before.Add(time.Second)) })
			close(proceed)
			require.ErrorIs(t, p.stop(), want)
			require.Empty(t, holder(f.leaseOf("shard-0")), "given back")
		})
	}
}

func TestHandlerOfAnIncompleteResource(t *testing.T) {
	s := newFixture(t).shard("shard-0")

	_, err := s.Handler(Resource{}, nil)(t.Context(), types.NamespacedName{})
	require.ErrorContains(t, err, "set Kind, Resource, Store, and Client")
}

func TestTweakListOptionsKeepsWhatIsThere(t *testing.T) {
	s, err := New(Options{Ring: "example", Name: "shard-0", Namespace: "default"})
	require.NoError(t, err)

	options := metav1.ListOptions{LabelSelector: "app=a"}
	s.TweakListOptions(&options)
	require.Equal(t, "app=a,"+s.Selector().String(), options.LabelSelector)
}
