// Package plot draws a [result.Series] as SVG: a line through the medians, a band from the lowest to the highest round, and a dashed line
// for the floor.
//
// It uses no library, because it needs only one kind of chart. gonum.org/v1/plot, the best-maintained library, would add about ten modules
// (fonts, LaTeX, PDF), and draws in fixed colors, which suit either a light or a dark page.
package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// The picture, in pixels: its size, and where the area is that the axes enclose.
const (
	width, height            = 760, 420
	left, right, bottom      = 84, 736, 356
	lineHeight, titleTop     = 20, 30
	mostPerTitleLine         = 78
	leastBetweenTicks        = 14 // plus the width of the labels
	widthOfDigit             = 7.2
	dotsUpTo                 = 60
	paddingTop, legendHeight = 16, 36
)

// SVG returns the plot of a series. The result does not depend on the order of the points. Points without a value are omitted. It returns
// an error if no point remains, or if a figure is negative or not finite.
func SVG(s *result.Series) (string, error) {
	points, err := pointsOf(s)
	if err != nil {
		return "", fmt.Errorf("draw the series %q: %w", s.ID, err)
	}

	title := wrapped(s.Title)
	top := float64(titleTop + len(title)*lineHeight + legendHeight + paddingTop)
	c := chart{
		series: s,
		points: points,
		x:      horizontal(points),
		y:      vertical(points, s.Unit, top),
		top:    top,
	}
	c.open(height, title, "")
	c.legend(float64(titleTop + len(title)*lineHeight))
	c.grid()
	c.curves()
	c.line(`</svg>`)

	return c.String(), nil
}

// point is a place of a series with what is drawn of it.
type point struct {
	x                 float64
	median, low, high float64
	floor             float64 // NaN without one
	rounds            int
}

func pointsOf(s *result.Series) ([]point, error) {
	var points []point

	for _, p := range s.Points {
		for _, v := range slices.Concat([]float64{p.X}, p.Values, p.Floor) {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return nil, fmt.Errorf("at %s %v, %v cannot be drawn", s.Over, p.X, v)
			}
		}

		if len(p.Values) == 0 {
			continue
		}

		drawn := point{x: p.X, rounds: len(p.Values)}
		drawn.median, drawn.low, drawn.high = result.Spread(p.Values)
		drawn.floor, _, _ = result.Spread(p.Floor)
		points = append(points, drawn)
	}

	if len(points) == 0 {
		return nil, fmt.Errorf("no values")
	}
	slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })

	return points, nil
}

// picture is a picture that is being drawn.
type picture struct{ strings.Builder }

// chart is the picture of a series.
type chart struct {
	picture

	series *result.Series
	points []point
	x, y   axis
	top    float64
}

// style is the looks, on light and on dark pages. The picture has a ground of its own, because a page's theme may differ from
// what its reader's browser prefers.
const style = `    .ground{fill:#fff}
    .title{font-weight:bold;font-size:16px;fill:#0f172a}
    .label{fill:#334155}
    .grid{stroke:#e2e8f0}
    .axis{stroke:#64748b}
    .median{stroke:#2563eb;stroke-width:2.5;fill:none;stroke-linejoin:round}
    .dot{fill:#2563eb}
    .band{fill:#2563eb;fill-opacity:.18}
    .floor{stroke:#b45309;stroke-width:2;stroke-dasharray:7 5;fill:none}
    @media (prefers-color-scheme:dark){
      .ground{fill:#0f172a}
      .title{fill:#f1f5f9}
      .label{fill:#cbd5e1}
      .grid{stroke:#283548}
      .axis{stroke:#94a3b8}
      .median{stroke:#60a5fa}
      .dot{fill:#60a5fa}
      .band{fill:#60a5fa;fill-opacity:.28}
      .floor{stroke:#fbbf24}
    }
`

// open begins a picture of the given height with the lines of its title. The style follows the common one.
func (p *picture) open(height int, title []string, more string) {
	p.line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="13">`, width, height)
	p.line(`  <title>%s</title>`, escaped(strings.Join(title, " ")))
	p.line(`  <style>`)
	p.WriteString(style + more)
	p.line(`  </style>`)
	p.line(`  <rect class="ground" width="%d" height="%d" rx="8"/>`, width, height)

	for i, l := range title {
		p.line(`  <text class="title" x="20" y="%d">%s</text>`, titleTop+i*lineHeight, escaped(l))
	}
}

// legend says what the lines are, below the title.
func (c *chart) legend(y float64) {
	if rounds := c.rounds(); rounds == "1" {
		c.line(`  <path class="median" d="M20 %s h28"/><circle class="dot" cx="34" cy="%s" r="3.5"/>`, px(y), px(y))
		c.line(`  <text class="label" x="56" y="%s">one round</text>`, px(y+4))
	} else {
		c.line(`  <rect class="band" x="20" y="%s" width="28" height="14"/>`, px(y-7))
		c.line(`  <path class="median" d="M20 %s h28"/><circle class="dot" cx="34" cy="%s" r="3.5"/>`, px(y), px(y))
		c.line(`  <text class="label" x="56" y="%s">median of %s rounds, and their range</text>`, px(y+4), rounds)
	}

	if c.hasFloor() {
		c.line(`  <path class="floor" d="M310 %s h34"/>`, px(y))
		c.line(`  <text class="label" x="352" y="%s">median of the floor in the same rounds</text>`, px(y+4))
	}
}

// rounds says how many there were: one number, or the lowest and the highest.
func (c *chart) rounds() string {
	count := func(a, b point) int { return cmp.Compare(a.rounds, b.rounds) }

	least, most := slices.MinFunc(c.points, count).rounds, slices.MaxFunc(c.points, count).rounds
	if least == most {
		return strconv.Itoa(most)
	}

	return fmt.Sprintf("%d to %d", least, most)
}

func (c *chart) hasFloor() bool {
	return slices.ContainsFunc(c.points, func(p point) bool { return !math.IsNaN(p.floor) })
}

// grid draws the axes with their labels.
func (c *chart) grid() {
	for _, t := range c.y.ticks {
		class := "grid"
		if t == c.y.ticks[0] {
			class = "axis"
		}

		y := c.y.at(t.value)
		c.line(`  <path class="%s" d="M%d %s H%d"/>`, class, left, px(y), right)
		c.line(`  <text class="label" x="%d" y="%s" text-anchor="end">%s</text>`, left-8, px(y+4.5), escaped(t.label))
	}

	for _, t := range c.x.ticks {
		x := c.x.at(t.value)
		c.line(`  <path class="axis" d="M%s %d v5"/>`, px(x), bottom)
		c.line(`  <text class="label" x="%s" y="%d" text-anchor="middle">%s</text>`, px(x), bottom+20, escaped(t.label))
	}

	if c.x.zero && c.x.most > 0 {
		// Between zero and the first value the scale is another.
		x := (c.x.at(0) + c.x.at(c.x.lowest)) / 2
		c.line(`  <path class="ground" d="M%s %d h10 v12 h-10z"/><path class="axis" d="M%s %d l6 -12 m4 0 l-6 12"/>`, px(x-5), bottom-6, px(x-8), bottom+6)
	}

	unit := c.series.Unit
	if c.y.log {
		unit += " (logarithmic)"
	}
	c.line(`  <text class="label" x="20" y="%s">%s</text>`, px(c.top-paddingTop), escaped(unit))
	c.line(`  <text class="label" x="%d" y="%d" text-anchor="middle">%s (logarithmic)</text>`, (left+right)/2, bottom+44, escaped(c.series.Over))
}

// curves draws the band, the floor and the medians, in this order, so that none hides one of more interest.
func (c *chart) curves() {
	var up, down, medians, floor []string

	for _, p := range c.points {
		x := px(c.x.at(p.x))
		up = append(up, x+" "+px(c.y.at(p.high)))
		down = append(down, x+" "+px(c.y.at(p.low)))

		medians = append(medians, x+" "+px(c.y.at(p.median)))
		if !math.IsNaN(p.floor) {
			floor = append(floor, x+" "+px(c.y.at(p.floor)))
		}
	}
	slices.Reverse(down)

	if len(c.points) == 1 {
		// What has no width is drawn as a bar.
		p := c.points[0]
		x, y := c.x.at(p.x), c.y.at(p.high)
		c.line(`  <rect class="band" x="%s" y="%s" width="12" height="%s"/>`, px(x-6), px(y), px(c.y.at(p.low)-y))

		floor = slices.DeleteFunc(floor, func(string) bool { return true })
		if !math.IsNaN(p.floor) {
			c.line(`  <path class="floor" d="M%s %s h34"/>`, px(x-17), px(c.y.at(p.floor)))
		}
	} else {
		c.line(`  <path class="band" d="M%sZ"/>`, strings.Join(slices.Concat(up, down), " L"))
	}

	if len(floor) > 0 {
		c.line(`  <path class="floor" d="M%s"/>`, strings.Join(floor, " L"))
	}
	c.line(`  <path class="median" d="M%s"/>`, strings.Join(medians, " L"))

	if len(c.points) <= dotsUpTo {
		for _, p := range c.points {
			c.line(`  <circle class="dot" cx="%s" cy="%s" r="3.5"><title>%s</title></circle>`, px(c.x.at(p.x)), px(c.y.at(p.median)), escaped(c.describe(p)))
		}
	}
}

// describe is what a reader sees who points at a dot.
func (c *chart) describe(p point) string {
	text := fmt.Sprintf("%s %s: %s", figure.Number(p.x), c.series.Over, figure.With(figure.Number(p.median), c.series.Unit))
	if p.rounds > 1 {
		text += fmt.Sprintf(" (%s to %s)", figure.Number(p.low), figure.Number(p.high))
	}

	if !math.IsNaN(p.floor) {
		text += ", floor " + figure.Number(p.floor)
	}

	return text
}

func (p *picture) line(format string, args ...any) {
	fmt.Fprintf(p, format+"\n", args...)
}

// wrapped cuts a title into lines.
func wrapped(title string) (lines []string) {
	for word := range strings.FieldsSeq(title) {
		last := len(lines) - 1
		if last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= mostPerTitleLine {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}

	return lines
}

// px is a coordinate with one decimal.
func px(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escaped(text string) string { return escapes.Replace(text) }
