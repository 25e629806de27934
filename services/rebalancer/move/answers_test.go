package move

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAnswers(t *testing.T) {
	of, other := schema.GroupResource{Resource: "websites"}, schema.GroupResource{Resource: "pods"}
	hung := errors.New("failed calling webhook")
	woken := 0
	a := NewAnswers(func(gr schema.GroupResource) {
		require.Equal(t, of, gr)

		woken++
	})

	begin := func(want bool) (time.Duration, func()) {
		t.Helper()

		patience, end, ok := a.Begin(of)
		require.Equal(t, want, ok)

		return patience, end
	}

	patience, end1 := begin(true)
	_, end2 := begin(true)

	// Two writes hang at the same time: the timeout doubles once.
	a.Answer(of, patience, patience, hung)
	a.Answer(of, patience, patience, hung)
	end1()
	begin(false)
	end2()

	patience, end := begin(true)
	require.Equal(t, 2*shortPatience, patience)
	begin(false)

	_, endOther, ok := a.Begin(other)
	require.True(t, ok, "another resource should not wait")
	endOther()

	a.Answer(of, patience, patience, hung)
	end()

	// A webhook that always needs three seconds.
	patience, end = begin(true)
	require.Equal(t, 4*time.Second, patience)
	require.Zero(t, woken)
	a.Answer(of, patience, 3*time.Second, nil)
	require.Equal(t, 1, woken)

	patience, end1 = begin(true)
	require.Equal(t, 12*time.Second, patience)

	// Refusals are answers, and a write that is fast again makes the timeout short.
	a.Answer(of, patience, time.Millisecond, hung)
	a.Answer(of, patience, time.Millisecond, nil)
	end()
	end1()

	patience, end = begin(true)
	require.Equal(t, shortPatience, patience)
	end()

	for range 10 {
		patience, end = begin(true)
		a.Answer(of, patience, patience, hung)
		end()
	}

	patience, end = begin(true)
	require.Equal(t, longPatience, patience)
	end()
}
