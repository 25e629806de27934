package report

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
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
	// legendLine is the height of a line of the legend, which stands between the title and the area of the axes.
	width, height, legendLine vg.Length = 570, 315, 14 // points
	// mostPerLine is how many characters of a title have room.
	mostPerLine = 72
	// pad is what is left free around plots, in points.
	pad = 10
)

// theme is a color of the light theme. The style of the picture replaces it in the dark one.
type theme struct {
	light color.RGBA
	dark  string
}

var (
	ground = theme{color.RGBA{R: 0xFF, G: 0xFF, B: 0xFF, A: 0xFF}, "#0F172A"}
	ink    = theme{color.RGBA{R: 0x33, G: 0x41, B: 0x55, A: 0xFF}, "#CBD5E1"}
	grid   = theme{color.RGBA{R: 0xE2, G: 0xE8, B: 0xF0, A: 0xFF}, "#283548"}
	// colors are those of lines, in their order: blue, brown, green, violet, red, gray.
	colors = []theme{
		{color.RGBA{R: 0x25, G: 0x63, B: 0xEB, A: 0xFF}, "#60A5FA"},
		{color.RGBA{R: 0xB4, G: 0x53, B: 0x09, A: 0xFF}, "#FBBF24"},
		{color.RGBA{R: 0x15, G: 0x80, B: 0x3D, A: 0xFF}, "#4ADE80"},
		{color.RGBA{R: 0x7E, G: 0x22, B: 0xCE, A: 0xFF}, "#C084FC"},
		{color.RGBA{R: 0xBE, G: 0x12, B: 0x3C, A: 0xFF}, "#FB7185"},
		{color.RGBA{R: 0x64, G: 0x74, B: 0x8B, A: 0xFF}, "#94A3B8"},
	}
)

// empty returns a plot with nothing but a title and a grid.
func empty(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = ground.light
	p.Title.Text, p.Title.Padding = wrapped(title), 8
	p.Title.TextStyle.Font.Size, p.Title.TextStyle.Font.Weight = 12, 3
	p.Legend.Top, p.Legend.Left, p.Legend.Padding, p.Legend.TextStyle.Font.Size = true, true, 2, 10

	for _, style := range []*draw.TextStyle{
		&p.Title.TextStyle, &p.Legend.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
	} {
		style.Color = ink.light
	}

	for _, style := range []*draw.LineStyle{&p.X.LineStyle, &p.Y.LineStyle, &p.X.Tick.LineStyle, &p.Y.Tick.LineStyle} {
		style.Color = ink.light
	}

	across := plotter.NewGrid()
	across.Vertical.Color, across.Horizontal.Color = nil, grid.light
	p.Add(across)

	return p
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

// wrapped cuts a long title into two lines.
func wrapped(title string) string {
	at := strings.LastIndexByte(title[:min(len(title), mostPerLine)], ' ')
	if len(title) <= mostPerLine || at < 0 {
		return title
	}

	return title[:at] + "\n" + title[at+1:]
}

// svg draws a plot. Fixed colors become variables, which the style of the picture sets for both themes. The title is
// for those who cannot see it.
func svg(title string, p *plot.Plot) string {
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.SetColor(ground.light)
	whole.Fill(whole.Path())
	p.Draw(draw.Crop(whole, pad, -2*pad, pad, -pad))

	var out bytes.Buffer

	_, _ = canvas.WriteTo(&out) // a buffer takes everything

	start, body, _ := strings.Cut(out.String(), "xlink\">\n")
	// Arial is as wide.
	body = strings.ReplaceAll(body, "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,sans-serif")
	light, night := "", ""

	for _, c := range append([]theme{ground, ink, grid}, colors...) {
		hex := fmt.Sprintf("#%02X%02X%02X", c.light.R, c.light.G, c.light.B)
		body = strings.ReplaceAll(body, hex, "var(--c"+hex[1:]+")")
		light, night = light+"--c"+hex[1:]+":"+hex+";", night+"--c"+hex[1:]+":"+c.dark+";"
	}

	return start + "xlink\">\n<title>" + html.EscapeString(title) + "</title>\n<style>svg{" + light +
		"}@media(prefers-color-scheme:dark){svg{" + night + "}}</style>\n" + body
}

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }
