package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// A strip of a picture of time lines, in pixels.
const (
	stripHeight          = 134
	stripTop, stripFloor = 32, 98 // of the area, below the beginning of the strip
	rugHeight            = 8
	timelineHead         = 66
)

// The delays that strips show, on a logarithmic scale, in seconds. Others are drawn at the edge.
const (
	leastDelay, mostDelay = 0.01, 100.0
)

const timelineStyle = `    .move{stroke:#b45309;stroke-width:1;stroke-opacity:.6}
    .delay{stroke:#2563eb;stroke-width:4;stroke-linecap:round}
    @media (prefers-color-scheme:dark){.move{stroke:#fbbf24}.delay{stroke:#60a5fa}}
`

// Timelines returns a picture of what happened in several periods, one below the other: a dot for each delay, at the time when it began, and a mark
// for each move. It returns an error if there is no period, or if one contains a figure that cannot be drawn.
func Timelines(title string, lines []*result.Timeline) (string, error) {
	if len(lines) == 0 {
		return "", fmt.Errorf("draw %q: no time lines", title)
	}

	var p picture
	p.open(timelineHead+len(lines)*stripHeight, []string{title}, timelineStyle)
	p.line(`  <path class="delay" d="M26 50h0"/><text class="label" x="36" y="54">a change of an object: when, and how long until the work on it was done</text>`)
	p.line(`  <path class="move" d="M560 45 v%d"/><text class="label" x="568" y="54">a move of an object</text>`, rugHeight)

	for i, t := range lines {
		if err := p.strip(timelineHead+i*stripHeight, t); err != nil {
			return "", fmt.Errorf("draw %q: %w", title, err)
		}
	}

	p.line(`</svg>`)

	return p.String(), nil
}

// strip draws one period, from the given height downwards.
func (p *picture) strip(y int, t *result.Timeline) error {
	if !(t.Period > 0) || math.IsInf(t.Period, 0) {
		return fmt.Errorf("%q has no period: %v", t.Title, t.Period)
	}

	// To whole pixels, so that the picture stays small.
	floor := float64(y + stripFloor)
	times := axis{from: left, to: right, most: t.Period}
	delays := axis{from: floor, to: float64(y + stripTop), lowest: leastDelay, most: mostDelay, log: true}
	x := func(at float64) string { return px(math.Round(times.at(min(max(at, 0), t.Period)))) }
	height := func(took float64) float64 { return math.Round(delays.at(min(took, mostDelay))) }

	p.line(`  <text class="label" x="20" y="%d" font-weight="bold">%s</text>`, y+stripTop-14, escaped(t.Title))

	for _, grid := range []float64{leastDelay, 1, mostDelay} {
		p.line(`  <path class="grid" d="M%d %s H%d"/><text class="label" x="%d" y="%s" text-anchor="end">%s s</text>`, left, px(height(grid)), right, left-8, px(height(grid)+4), figure.Number(grid))
	}

	for _, at := range ticks(t.Period) {
		p.line(`  <path class="axis" d="M%s %s v4"/><text class="label" x="%s" y="%s" text-anchor="middle">%s s</text>`, x(at), px(floor+rugHeight), x(at), px(floor+rugHeight+16), figure.Number(at))
	}

	p.line(`  <path class="axis" d="M%d %s H%d"/>`, left, px(floor+rugHeight), right)

	var marks []string // those at the same place count once

	for _, at := range t.Moves {
		marks = append(marks, fmt.Sprintf(`M%s %s v%d`, x(at), px(floor), rugHeight))
	}

	if marks = slices.Compact(marks); len(marks) > 0 {
		p.line(`  <path class="move" d="%s"/>`, strings.Join(marks, " "))
	}

	marks = nil

	for _, d := range t.Delays {
		if math.IsNaN(d.At) || math.IsNaN(d.Took) || d.Took < 0 {
			return fmt.Errorf("%q has a delay that cannot be drawn: %v", t.Title, d)
		}

		marks = append(marks, fmt.Sprintf(`M%s %sh0`, x(d.At), px(height(d.Took))))
	}

	slices.Sort(marks)

	if marks = slices.Compact(marks); len(marks) > 0 {
		p.line(`  <path class="delay" d="%s"/>`, strings.Join(marks, ""))
	}

	return nil
}

// ticks returns about five round times of a period.
func ticks(period float64) []float64 {
	const about = 5

	step := math.Pow(10, math.Floor(math.Log10(period/about)))
	for _, factor := range []float64{2, 2.5, 2} { // 2, 5, 10
		if period/step <= about {
			break
		}

		step *= factor
	}

	var all []float64
	for i := 0; float64(i)*step <= period; i++ {
		all = append(all, float64(i)*step)
	}

	return all
}
