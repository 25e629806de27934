package plot

import (
	"encoding/xml"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

func TestTimelines(t *testing.T) {
	svg, err := Timelines("What <happens>", []*result.Timeline{
		{Title: "a & b", Period: 10, Delays: []result.Delay{{At: 5, Took: 1}, {At: 20, Took: 1000}, {At: 0, Took: 0}}, Moves: []float64{2.5, 7.5}},
		{Title: "nothing", Period: 1},
	})
	require.NoError(t, err)

	decoder := xml.NewDecoder(strings.NewReader(svg))

	for err == nil {
		_, err = decoder.Token()
	}
	require.ErrorIs(t, err, io.EOF)

	require.Contains(t, svg, "What &lt;happens&gt;")
	require.Equal(t, 1+1, strings.Count(svg, `<path class="delay"`))
	require.Contains(t, svg, `d="M410 131h0M736 98h0M84 164h0"`, "in the middle of both axes, and at the edges")
	require.Equal(t, 1+1, strings.Count(svg, `<path class="move"`))
	require.Contains(t, svg, `d="M247 164 v8 M573 164 v8"`)
}

func TestTimelinesThatCannotBeDrawn(t *testing.T) {
	for name, lines := range map[string][]*result.Timeline{
		"none":     nil,
		"a period": {{Period: math.NaN()}},
		"a delay":  {{Period: 1, Delays: []result.Delay{{At: 0, Took: -1}}}},
	} {
		_, err := Timelines("x", lines)
		require.Error(t, err, name)
	}
}

func TestTicks(t *testing.T) {
	require.Equal(t, []float64{0, 2, 4, 6, 8, 10}, ticks(10))
	require.Equal(t, []float64{0, 10, 20, 30, 40}, ticks(42))
	require.Equal(t, []float64{0, 0.5, 1, 1.5, 2}, ticks(2.2))
}
