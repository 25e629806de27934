package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

const (
	// mostDots is up to how many points of a line are shown as such. Those that do not count always are.
	mostDots = 20
	// wide is the ratio of the highest to the lowest value from which the vertical axis may be logarithmic.
	wide = 50
	// closest is how near two labels of a logarithmic horizontal axis may be, as a part of its length.
	closest = 0.07
	// zeroAt is the part of the first positive value at which a logarithmic axis shows zero.
	zeroAt = 0.3
)

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

		style := draw.LineStyle{Color: colors[i%len(colors)].light, Width: 1.5}
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

		p.Legend.Add(l.Name, line)
		p.Legend.YOffs += legendLine
		p.Title.Padding += legendLine

		all, paths = append(all, line.XYs...), append(paths, hollow, full, line)
	}

	if len(all) == 0 {
		return "", fmt.Errorf("draw the chart %q: no values", c.ID)
	}

	// The first line comes last: what is below others is in front of them.
	slices.Reverse(paths)
	p.Add(paths...)

	_, most, _, highest := plotter.XYRange(all)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, cmp.Or(most, 1), 0, cmp.Or(max(highest, c.Limit)*1.05, 1) //nolint:mnd // room

	p.X.Tick.Marker = labels{plot.DefaultTicks{}}
	if most <= mostDots {
		p.X.Tick.Marker = whole{}
	}

	if c.Logarithmic {
		byFactors(p, all)
	}

	dotted := draw.LineStyle{Color: ink.light, Width: 1, Dashes: []vg.Length{1, 3}}
	if c.Limit > 0 {
		p.Add(&plotter.Line{XYs: plotter.XYs{{X: 0, Y: c.Limit}, {X: most, Y: c.Limit}}, LineStyle: dotted})
	}

	marks := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: ink.light, Radius: 4, Shape: draw.PyramidGlyph{}}}
	for _, at := range c.Marks {
		marks.XYs = append(marks.XYs, plotter.XY{X: at})
	}

	p.Add(marks)

	return svg(c.Title, p), nil
}

// byFactors makes the horizontal axis logarithmic. Its ticks are where something was measured, from the right, since
// the largest has the most to say. The vertical axis still begins at zero, so that heights can be compared; at 1 for
// ratios above it, of which 1 is the ideal. Only what differs by large factors is drawn logarithmically.
func byFactors(p *plot.Plot, all plotter.XYs) {
	_, _, lowest, highest := plotter.XYRange(all)
	places := slices.Sorted(slices.Values(result.Column(all, func(at plotter.XY) float64 { return at.X })))

	first := slices.IndexFunc(places, func(x float64) bool { return x > 0 })
	if first >= 0 && places[0] < p.X.Max {
		scale := logarithmic{places[first]}
		if p.X.Min = places[0]; p.X.Min == 0 {
			scale.least *= zeroAt
		}

		var ticks plot.ConstantTicks

		next := math.Inf(1)
		for _, x := range slices.Backward(places) {
			if at := scale.Normalize(p.X.Min, p.X.Max, x); next-at >= closest {
				ticks, next = append(ticks, plot.Tick{Value: x, Label: result.Number(x)}), at
			}
		}

		p.X.Scale, p.X.Tick.Marker = scale, ticks
		p.X.Label.Text += " (logarithmic)"
	}

	switch {
	case lowest > 0 && highest/lowest >= wide:
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(lowest))), math.Pow(10, math.Ceil(math.Log10(highest)))
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, labels{plot.LogTicks{Prec: -1}}
		p.Y.Label.Text += " (logarithmic)"
	case p.Y.Label.Text == ratio && lowest >= 1:
		p.Y.Min, p.Y.Max = 1, max(p.Y.Max, 1.1) //nolint:mnd // a tenth more
	}
}

// logarithmic is a scale that shows all that is below its least value, and zero, at its beginning.
type logarithmic struct{ least float64 }

// Normalize returns where x is between lowest and most, from 0 to 1.
func (l logarithmic) Normalize(lowest, most, x float64) float64 {
	lowest, x = max(lowest, l.least), max(x, l.least)

	return math.Log(x/lowest) / math.Log(most/lowest)
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
