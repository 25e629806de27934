package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// colors are those of lines, in their order.
var colors = []color.RGBA{blue, brown, green, violet, red, gray}

// mostDots is up to how many points of a line are shown as such. Those that do not count always are.
const mostDots = 20

// drawn returns a chart as SVG, for both themes. It returns an error if no line has points, or if a number is negative
// or not finite.
func drawn(c *result.Chart) (string, error) {
	p := empty(c.Title)
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	p.Y.Tick.Marker = labels{plot.DefaultTicks{}}

	var (
		all   plotter.XYs
		below map[float64]float64
		paths []plot.Plotter
	)

	for i, l := range c.Lines {
		if len(l.Points) == 0 {
			continue
		}

		style := draw.LineStyle{Color: colors[i%len(colors)], Width: 1.5}
		if l.Dashed {
			style.Dashes = []vg.Length{5, 4}
		}

		line := &plotter.Line{LineStyle: style}
		full := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: style.Color, Radius: 2.5, Shape: draw.CircleGlyph{}}}
		hollow := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: style.Color, Radius: 4, Shape: draw.RingGlyph{}}}
		top := map[float64]float64{}

		for _, point := range l.Points {
			if !(point.X >= 0 && point.Y >= 0 && point.X+point.Y <= math.MaxFloat64) {
				return "", fmt.Errorf("draw the chart %q: %v, %v cannot be drawn", c.ID, point.X, point.Y)
			}

			at := plotter.XY{X: point.X, Y: point.Y + below[point.X]}
			top[at.X] = at.Y
			line.XYs = append(line.XYs, at)

			switch {
			case point.Hollow:
				hollow.XYs = append(hollow.XYs, at)
			case len(l.Points) <= mostDots && !c.Stacked:
				full.XYs = append(full.XYs, at)
			}
		}

		if c.Stacked {
			below, line.FillColor = top, style.Color
		}

		legend(p, l.Name, line)

		all, paths = append(all, line.XYs...), append(paths, hollow, full, line)
	}

	if len(all) == 0 {
		return "", fmt.Errorf("draw the chart %q: no values", c.ID)
	}

	// The first line comes last: what is below others is in front of them.
	slices.Reverse(paths)
	p.Add(paths...)

	_, most, _, highest := plotter.XYRange(all)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, most, 0, max(highest, c.Limit)*1.05 //nolint:mnd // some room

	if highest == 0 && c.Limit == 0 {
		p.Y.Max = 1
	}

	p.X.Tick.Marker = labels{plot.DefaultTicks{}}
	if most <= mostDots {
		p.X.Tick.Marker = whole{}
	}

	dotted := draw.LineStyle{Color: ink, Width: 1, Dashes: []vg.Length{1, 3}}
	if c.Limit > 0 {
		p.Add(&plotter.Line{XYs: plotter.XYs{{X: 0, Y: c.Limit}, {X: most, Y: c.Limit}}, LineStyle: dotted})
	}

	marks := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: ink, Radius: 4, Shape: draw.PyramidGlyph{}}}
	for _, at := range c.Marks {
		marks.XYs = append(marks.XYs, plotter.XY{X: at})
	}

	p.Add(marks)

	return svg(c.Title, p), nil
}

// whole places a tick at each whole number.
type whole struct{}

// Ticks returns the ticks between two values.
func (whole) Ticks(lowest, most float64) (all []plot.Tick) {
	for at := math.Ceil(lowest); at <= most; at++ {
		all = append(all, plot.Tick{Value: at, Label: result.Number(at)})
	}

	return all
}
