package run

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// bench returns a bench with a clock that stands still, and what it shows.
func bench(rounds int) (*Bench, *clocktesting.FakeClock, *bytes.Buffer) {
	clock, shown := clocktesting.NewFakeClock(time.Unix(0, 0)), &bytes.Buffer{}
	return &Bench{Clock: clock, rounds: rounds, progress: shown}, clock, shown
}

// sides returns two trials that write down when they are made, and take a second each.
func sides(clock *clocktesting.FakeClock) (value, floor Trial[float64], order *strings.Builder) {
	order = &strings.Builder{}
	side := func(letter string) Trial[float64] {
		n := 0.0

		return func(context.Context) (float64, error) {
			order.WriteString(letter)
			clock.Step(time.Second)
			n++

			return n, nil
		}
	}

	return side("v"), side("f"), order
}

func TestRoundsTakeTurns(t *testing.T) {
	b, clock, shown := bench(3)
	value, floor, order := sides(clock)
	values, floors, err := Rounds(t.Context(), b, value, floor)
	require.NoError(t, err)
	require.Equal(t, "fv"+"vf"+"fv"+"vf", order.String(), "the first pair warms up")
	require.Equal(t, []float64{2, 3, 4}, values)
	require.Equal(t, []float64{2, 3, 4}, floors)
	require.Contains(t, shown.String(), "warm-up: 1, floor 1\n")
	require.Contains(t, shown.String(), "round 2 of 3: 3, floor 3 (2.0 s)\n")

	order.Reset()

	values, floors, err = Rounds(t.Context(), b.Times(2), value, nil)
	require.NoError(t, err)
	require.Equal(t, "vvvvvvv", order.String())
	require.Len(t, values, 6)
	require.Empty(t, floors)
}

// A round takes 2 seconds: in 7 seconds there is time for the warm-up and two more, in none for one round all the same.
func TestRoundsKeepTheBudget(t *testing.T) {
	for _, tc := range []struct {
		budget time.Duration
		rounds int
	}{{7 * time.Second, 2}, {6 * time.Second, 2}, {0, 1}} {
		b, clock, shown := bench(5)
		b.deadline = clock.Now().Add(tc.budget)
		value, floor, _ := sides(clock)
		values, _, err := Rounds(t.Context(), b, value, floor)
		require.NoError(t, err)
		require.Len(t, values, tc.rounds)
		require.Contains(t, shown.String(), "to keep the time budget")
	}
}

func TestRoundsEndWithAnError(t *testing.T) {
	b, clock, _ := bench(5)
	value, floor, _ := sides(clock)
	broken := func(context.Context) (float64, error) { return 0, errors.New("broken") }
	_, _, err := Rounds(t.Context(), b, broken, floor)
	require.EqualError(t, err, "round 0: broken")
	_, _, err = Rounds(t.Context(), b, value, broken)
	require.EqualError(t, err, "round 0: floor: broken")
}

func measurement(name string, err error, ids ...string) Measurement {
	return Measurement{Name: name, Parts: []Part{{Rows: ids, Run: func(_ context.Context, b *Bench) error {
		for _, id := range ids {
			b.Report(result.Row{ID: id, Values: []float64{1}})
		}

		return err
	}}}}
}

func TestPlan(t *testing.T) {
	var shown bytes.Buffer

	profiled := ""
	p := &Plan{
		Measurements: []Measurement{measurement("one", nil, "a-1", "a-2"), measurement("two", errors.New("broken"), "b-1")},
		Progress:     &shown,
		Profile: func(_ context.Context, name string) func() error {
			profiled += name + " "
			return func() error { profiled += "end "; return nil }
		},
	}
	with := Bench{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}

	found, err := p.Do(t.Context(), with)
	require.EqualError(t, err, "two: broken")
	require.Len(t, found.Rows, 3, "also those of the others")
	require.Contains(t, shown.String(), "==> 2/2 two")
	require.Equal(t, "one end two end ", profiled)

	p.Only = regexp.MustCompile("^a-2$")
	found, err = p.Do(t.Context(), with)
	require.NoError(t, err)
	require.Len(t, found.Rows, 1)
	require.Equal(t, "a-2", found.Rows[0].ID)
}

func TestPlanRefusesRowsThatSayNothing(t *testing.T) {
	empty := Measurement{Name: "empty", Parts: []Part{{Rows: []string{"e"}, Run: func(_ context.Context, b *Bench) error {
		b.Report(result.Row{ID: "e"}, result.Row{ID: "x", Values: []float64{1}})

		return nil
	}}}}
	p := &Plan{Measurements: []Measurement{empty}, Progress: &bytes.Buffer{}}
	_, err := p.Do(t.Context(), Bench{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	require.ErrorContains(t, err, `empty: row "e" has no value`)
	require.ErrorContains(t, err, `row "x" is not announced`)
}

func TestPlanEndsWhenInterrupted(t *testing.T) {
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	first := Measurement{Name: "first", Parts: []Part{{Rows: []string{"f"}, Run: func(context.Context, *Bench) error {
		cancel(interrupted)
		return ctx.Err()
	}}}}
	p := &Plan{Measurements: []Measurement{first, measurement("never", nil, "n")}, Progress: &bytes.Buffer{}}
	found, err := p.Do(ctx, Bench{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	require.ErrorIs(t, err, interrupted)
	require.Empty(t, found.Rows)
}

// TestReport: rows are completed, charts grow, and what is not wanted is dropped.
func TestReport(t *testing.T) {
	m := Measurement{Name: "m", Parts: []Part{{
		Rows: []string{"r-ratio", "r-value", "x-row"},
		Run: func(_ context.Context, b *Bench) error {
			fixed := func(v float64) Trial[float64] {
				return func(context.Context) (float64, error) { return v, nil }
			}
			err := Compare(t.Context(), b, Sides[float64]{fixed(2), fixed(1)},
				Figure[float64]{Row: result.Row{ID: "r-ratio", Unit: "ms", FloorTitle: "half", Target: result.Max(2)}, Of: Itself},
				Figure[float64]{Row: result.Row{ID: "r-value", Unit: "ms", Target: result.Min(4)},
					Of: func(v float64) float64 { return 2 * v }},
				Figure[float64]{Row: result.Row{ID: "x-row"}, Of: Itself})

			b.Grow(result.Chart{ID: "r-grown"}, 10, []float64{1, 2, 9}, []float64{1})
			b.Grow(result.Chart{ID: "x-grown"}, 10, []float64{1}, nil)
			b.Grow(result.Chart{ID: "r-grown"}, 20, []float64{4}, nil)

			for _, id := range []string{"r-drawn", "x-drawn"} {
				b.Draw(result.Chart{ID: id, Lines: []result.Line{{Points: []result.XY{{X: 1, Y: 2}}}}})
			}

			b.Draw(result.Chart{ID: "r-empty", Lines: []result.Line{{Name: "none"}}})

			return err
		},
	}}}
	p := &Plan{Measurements: []Measurement{m}, Only: regexp.MustCompile("^r"), Progress: &bytes.Buffer{}, Rounds: 1}
	found, err := p.Do(t.Context(), Bench{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	require.NoError(t, err)
	require.Equal(t, []result.Row{
		{
			ID: "r-ratio", Unit: "ms", Values: []float64{2}, FloorTitle: "half", Floor: []float64{1},
			Target: result.Target{Bound: result.AtMost, Value: 2},
		},
		{
			ID: "r-value", Unit: "ms", Values: []float64{4},
			Target: result.Target{Bound: result.AtLeast, Value: 4},
		},
	}, found.Rows)
	require.Equal(t, []result.Chart{
		{ID: "r-grown", Logarithmic: true, Lines: []result.Line{
			{Name: "median of the rounds", Points: []result.XY{{X: 10, Y: 2}, {X: 20, Y: 4}}},
			{Name: "median of the floor in these rounds", Dashed: true, Points: []result.XY{{X: 10, Y: 1}}},
		}},
		{ID: "r-drawn", Lines: []result.Line{{Points: []result.XY{{X: 1, Y: 2}}}}},
	}, found.Charts)
}

// TestPartsCleanUp: what a part has made is gone before the next part, last made first; only the last part of all may
// leave something.
func TestPartsCleanUp(t *testing.T) {
	b, clock, _ := bench(1)
	b.Scale, b.deadline, b.last = Small, clock.Now().Add(time.Minute), true

	var order string

	note := func(text string) func(context.Context) error {
		return func(ctx context.Context) error {
			order += text
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	deadlines := []time.Time{
		clock.Now().Add(time.Minute / 3), clock.Now().Add(time.Minute / 2), clock.Now().Add(time.Minute),
	}
	part := func(name string, i int, err error) Part {
		return Part{Name: name, Run: func(_ context.Context, b *Bench) error {
			require.Equal(t, deadlines[i], b.deadline)
			b.Cleanup(note(name + "-c "))
			b.Remove(note(name + "-r "))
			require.NoError(t, b.Each(ctx, 1, func(b *Bench, _ int) error { b.Cleanup(note(name + "-each ")); return nil }))

			if err != nil {
				cancel()
			}

			return err
		}}
	}
	err := b.Parts(ctx, part("1", 0, nil), Part{Rows: []string{"unwanted"}, NotSmall: true}, part("2", 1, nil),
		part("3", 2, errors.New("broken")))
	require.EqualError(t, err, "3: broken", "cleanups run also if the context has ended")
	require.Equal(t, "1-each 1-r 1-c 2-each 2-r 2-c 3-each 3-c ", order)
}

// TestParts: those of which nothing is wanted are left out, and at a small scale those that take long, unless they are
// asked for.
func TestParts(t *testing.T) {
	for only, want := range map[string]string{
		"": "row unnamed ", "row|long": "row long unnamed ",
	} {
		b, _, _ := bench(1)
		b.Scale = Small

		if only != "" {
			b.only = regexp.MustCompile(only)
		}

		ran := ""
		part := func(p Part, name string) Part {
			p.Run = func(context.Context, *Bench) error {
				ran += name + " "
				return nil
			}

			return p
		}
		require.NoError(t, b.Parts(t.Context(), part(Part{Rows: []string{"row"}}, "row"),
			part(Part{Rows: []string{"long"}, NotSmall: true}, "long"), part(Part{}, "unnamed")))
		require.Equal(t, want, ran)
	}
}
