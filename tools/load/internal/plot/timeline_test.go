package plot

import (
	"encoding/xml"
	"errors"
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
	require.True(t, errors.Is(err, io.EOF), err)

	require.Contains(t, svg, "What &lt;happens&gt;")
	require.Equal(t, 1+3, strings.Count(svg, `<circle class="dot"`))
	require.Equal(t, 1+2, strings.Count(svg, `<path class="move"`))
	require.Contains(t, svg, `cx="410" cy="124"`, "in the middle of both axes")
	require.Contains(t, svg, `cx="736" cy="90"`, "outside is at the edge")
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
