package ordinal_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// What is remembered of a deleted object is forgotten, even if the controller filters deletions. What is made anew is remembered.
func TestDeletedObjectsAreForgotten(t *testing.T) {
	f := newFixture(t, 1)
	f.filter = predicate.Funcs{DeleteFunc: func(event.DeleteEvent) bool { return false }}
	all := f.objects(20)
	m := f.start(0)
	time := clocktesting.NewFakeClock(time.Time{})
	m.process.SetClock(time)

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
	}

	for _, cm := range all {
		require.NoError(t, f.admin.Delete(t.Context(), cm))
	}

	f.objects(1)
	f.touch([]*corev1.ConfigMap{all[0]}, "1")
	f.eventually(func() bool { return len(f.record.by(all[0].Name, "1")) > 0 }, "it is made anew")
	require.Equal(t, len(all), m.process.Remembered(), "a long queue may lead to them")
	f.eventually(func() bool {
		time.Step(forgetAfter)

		return m.process.Remembered() == 1
	}, "the others should be forgotten")

	for range 10 {
		time.Step(forgetAfter)
		require.Equal(t, 1, m.process.Remembered())
	}

	require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(all[0]), all[0]))
	require.Empty(t, f.record.by(all[1].Name, deleted))
}
