package report

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

const (
	width, height, legendLine vg.Length = 570, 315, 14 // points
	// mostPerLine is how many characters of a title have room.
	mostPerLine = 72
	// wide is the ratio of the highest to the lowest value from which the vertical axis is logarithmic.
	wide = 50
	// closest is how near two labels of the horizontal axis may be, as a part of its length.
	closest = 0.07
	// zeroAt is the part of the first positive value at which a logarithmic axis shows zero.
	zeroAt = 0.3
	// pad is what is left free around plots, in points.
	pad = 10
)

// Colors of the light theme. The style of the picture replaces them in the dark one.
var (
	ground = color.RGBA{R: 0xFF, G: 0xFF, B: 0xFF, A: 0xFF}
	ink    = color.RGBA{R: 0x33, G: 0x41, B: 0x55, A: 0xFF}
	lines  = color.RGBA{R: 0xE2, G: 0xE8, B: 0xF0, A: 0xFF}
	blue   = color.RGBA{R: 0x25, G: 0x63, B: 0xEB, A: 0xFF}
	band   = color.RGBA{R: 0xC8, G: 0xD8, B: 0xFA, A: 0xFF}
	brown  = color.RGBA{R: 0xB4, G: 0x53, B: 0x09, A: 0xFF}
	green  = color.RGBA{R: 0x15, G: 0x80, B: 0x3D, A: 0xFF}
	violet = color.RGBA{R: 0x7E, G: 0x22, B: 0xCE, A: 0xFF}
	red    = color.RGBA{R: 0xBE, G: 0x12, B: 0x3C, A: 0xFF}
	gray   = color.RGBA{R: 0x64, G: 0x74, B: 0x8B, A: 0xFF}
)

var themes = []struct {
	light color.RGBA
	dark  string
}{
	{ground, "#0F172A"}, {ink, "#CBD5E1"}, {lines, "#283548"}, {blue, "#60A5FA"}, {band, "#1E3A6E"}, {brown, "#FBBF24"},
	{green, "#4ADE80"}, {violet, "#C084FC"}, {red, "#FB7185"}, {gray, "#94A3B8"},
}

// picture returns the plot of a series as SVG: a line through the medians, a band from the lowest to the highest round,
// and a dashed line for the floor. It follows the light or dark theme of its reader. The result does not depend on the
// order of the points. Points without a value are omitted. It returns an error if no point remains, or if a figure is
// negative or not finite.
func picture(s *result.Series) (string, error) {
	points := slices.DeleteFunc(slices.Clone(s.Points), func(p result.Point) bool { return len(p.Values) == 0 })
	slices.SortStableFunc(points, func(a, b result.Point) int { return cmp.Compare(a.X, b.X) })

	var median, low, high, floor plotter.XYs

	for _, p := range points {
		for _, v := range slices.Concat([]float64{p.X}, p.Values, p.Floor) {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return "", fmt.Errorf("draw the series %q: at %s %v, %v cannot be drawn", s.ID, s.Over, p.X, v)
			}
		}

		m, l, h := result.Spread(p.Values)
		median, low, high = append(median, plotter.XY{X: p.X, Y: m}), append(low, plotter.XY{X: p.X, Y: l}),
			append(high, plotter.XY{X: p.X, Y: h})

		if f, _, _ := result.Spread(p.Floor); !math.IsNaN(f) {
			floor = append(floor, plotter.XY{X: p.X, Y: f})
		}
	}

	if len(points) == 0 {
		return "", fmt.Errorf("draw the series %q: no values", s.ID)
	}

	p := empty(s.Title)
	p.X.Label.Text, p.Y.Label.Text = s.Over, s.Unit
	horizontal(p, points)
	vertical(p, slices.Concat(low, high, floor), s.Unit)
	slices.Reverse(low)

	area, err := plotter.NewPolygon(slices.Concat(high, low))
	if err != nil {
		return "", fmt.Errorf("draw the series %q: %w", s.ID, err)
	}

	area.Color, area.Width = band, 0
	below := &plotter.Line{XYs: floor, LineStyle: draw.LineStyle{Color: brown, Width: 1.5, Dashes: []vg.Length{5, 4}}}
	line := &plotter.Line{XYs: median, LineStyle: draw.LineStyle{Color: blue, Width: 2}}
	dots := &plotter.Scatter{XYs: median, GlyphStyle: draw.GlyphStyle{Color: blue, Radius: 2.5, Shape: draw.CircleGlyph{}}}
	p.Add(area, below, line, dots)

	legend(p, "median of the rounds, and their range", area, line, dots)

	if len(floor) > 0 {
		legend(p, "median of the floor in the same rounds", below)
	}

	return svg(s.Title, p), nil
}

// legend adds a line to what stands between the title and the area of the axes.
func legend(p *plot.Plot, text string, thumbs ...plot.Thumbnailer) {
	p.Legend.Add(text, thumbs...)
	p.Legend.YOffs += legendLine
	p.Title.Padding += legendLine
}

// empty returns a plot with nothing but a title and a grid.
func empty(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = ground
	p.Title.Text, p.Title.Padding = wrapped(title), 8
	p.Title.TextStyle.Font.Size, p.Title.TextStyle.Font.Weight = 12, 3
	p.Legend.Top, p.Legend.Left, p.Legend.Padding, p.Legend.TextStyle.Font.Size = true, true, 2, 10

	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.Legend.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
	} {
		style.Color = ink
	}

	for _, style := range []*draw.LineStyle{&p.X.LineStyle, &p.Y.LineStyle, &p.X.Tick.LineStyle, &p.Y.Tick.LineStyle} {
		style.Color = ink
	}

	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, lines
	p.Add(grid)

	return p
}

// horizontal makes the axis logarithmic, because what a cost grows with does so by factors. Its ticks are where
// something was measured, from the right, since the largest has the most to say.
func horizontal(p *plot.Plot, points []result.Point) {
	first := slices.IndexFunc(points, func(p result.Point) bool { return p.X > 0 })
	p.X.Min, p.X.Max = points[0].X, points[len(points)-1].X

	if first < 0 || p.X.Min == p.X.Max {
		p.X.Min, p.X.Max = p.X.Min-0.5, p.X.Max+0.5
		p.X.Tick.Marker = plot.ConstantTicks{{Value: points[0].X, Label: result.Number(points[0].X)}}

		return
	}

	scale := logarithmic{points[first].X}
	if p.X.Min == 0 {
		scale.least *= zeroAt
	}

	p.X.Scale = scale
	p.X.Label.Text += " (logarithmic)"

	var ticks plot.ConstantTicks

	next := math.Inf(1)
	for _, point := range slices.Backward(points) {
		if at := scale.Normalize(p.X.Min, p.X.Max, point.X); next-at >= closest {
			ticks, next = append(ticks, plot.Tick{Value: point.X, Label: result.Number(point.X)}), at
		}
	}

	p.X.Tick.Marker = ticks
}

// vertical begins at zero, so that heights can be compared; at 1 for ratios above it, of which 1 is the ideal. Only
// what differs by large factors is drawn logarithmically.
func vertical(p *plot.Plot, values plotter.XYs, unit string) {
	_, _, lowest, most := plotter.XYRange(values)
	p.Y.Min, p.Y.Max = 0, most
	p.Y.Tick.Marker = labels{plot.DefaultTicks{}}

	switch {
	case lowest > 0 && most/lowest >= wide:
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(lowest))), math.Pow(10, math.Ceil(math.Log10(most)))
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, labels{plot.LogTicks{Prec: -1}}
		p.Y.Label.Text += " (logarithmic)"
	case unit == ratio && lowest >= 1:
		p.Y.Min, p.Y.Max = 1, max(most, 1.1)
	case most == 0:
		p.Y.Max = 1
	}
}

// logarithmic is a scale that shows all that is below its least value, and zero, at its beginning.
type logarithmic struct{ least float64 }

// Normalize returns where x is between lowest and most, from 0 to 1.
func (l logarithmic) Normalize(lowest, most, x float64) float64 {
	lowest, x = max(lowest, l.least), max(x, l.least)

	return math.Log(x/lowest) / math.Log(most/lowest)
}

// labels formats the labels of ticks as [result.Number] does.
type labels struct{ plot.Ticker }

// Ticks returns the ticks between two values.
func (l labels) Ticks(lowest, most float64) []plot.Tick {
	all := l.Ticker.Ticks(lowest, most)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = result.Number(math.Round(all[i].Value*1e9) / 1e9)
		}
	}

	return all
}

// wrapped cuts a title into lines.
func wrapped(title string) string {
	var b strings.Builder

	length := 0

	for word := range strings.FieldsSeq(title) {
		switch n := len([]rune(word)); {
		case length == 0:
		case length+1+n > mostPerLine:
			b.WriteByte('\n')

			length = 0
		default:
			b.WriteByte(' ')

			length++
		}

		b.WriteString(word)
		length += len([]rune(word))
	}

	return b.String()
}

// svg draws a plot. Fixed colors become variables, which the style of the picture sets for both themes. The title is
// for those who cannot see it.
func svg(title string, p *plot.Plot) string {
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.SetColor(ground)
	whole.Fill(whole.Path())
	p.Draw(draw.Crop(whole, pad, -2*pad, pad, -pad))

	var out bytes.Buffer

	_, _ = canvas.WriteTo(&out) // a buffer takes everything

	start, body, _ := strings.Cut(out.String(), "xlink\">\n")
	// Arial is as wide.
	body = strings.ReplaceAll(body, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,sans-serif")
	light, night := "", ""

	for _, c := range themes {
		hex := fmt.Sprintf("#%02X%02X%02X", c.light.R, c.light.G, c.light.B)
		body = strings.ReplaceAll(body, hex, "var(--c"+hex[1:]+")")
		light, night = light+"--c"+hex[1:]+":"+hex+";", night+"--c"+hex[1:]+":"+c.dark+";"
	}

	return start + "xlink\">\n<title>" + html.EscapeString(title) + "</title>\n<style>svg{" + light +
		"}@media(prefers-color-scheme:dark){svg{" + night + "}}</style>\n" + body
}

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }
