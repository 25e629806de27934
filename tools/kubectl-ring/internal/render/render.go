// Package render writes answers for people and for programs.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Style is the meaning of a text. If colours are enabled, it is shown as a colour.
type Style string

// Styles by their meaning. The zero value does not change a text.
const (
	Plain Style = ""
	Good  Style = "32"
	Warn  Style = "33"
	Bad   Style = "31"
	Dim   Style = "2"
	Bold  Style = "1"
)

// Cell is a text in a table, with its style.
type Cell struct {
	Text  string
	Style Style
}

// In returns a cell.
func (s Style) In(text string) Cell { return Cell{text, s} }

// Paint returns the text in the style if colours are enabled. The text must be clean.
func (s Style) Paint(text string, colour bool) string {
	if !colour || s == Plain || text == "" {
		return text
	}

	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// gap separates columns.
const gap = 3

// Table aligns rows in columns. Flush writes the rows. Columns keep their widths after a flush and only grow, so that a
// long list can be written in parts. A table is not safe for concurrent use.
type Table struct {
	// W receives the rows.
	W io.Writer
	// Colour enables colours.
	Colour bool

	widths []int
	rows   [][]Cell
}

// Header adds a row with the names of the columns.
func (t *Table) Header(names ...string) {
	row := make([]Cell, 0, len(names))
	for i, name := range names {
		t.Reserve(i, name)
		row = append(row, Bold.In(name))
	}

	t.rows = append(t.rows, row)
}

// Reserve makes a column at least as wide as a text that will follow.
func (t *Table) Reserve(column int, text string) {
	for len(t.widths) <= column {
		t.widths = append(t.widths, 0)
	}

	t.widths[column] = max(t.widths[column], utf8.RuneCountInString(text))
}

// Row adds a row. Each value is a Cell or is formatted as text. An empty text becomes a dash.
func (t *Table) Row(values ...any) {
	row := make([]Cell, 0, len(values))
	for i, value := range values {
		cell, ok := value.(Cell)
		if !ok {
			cell = Cell{Text: fmt.Sprint(value)}
		}

		cell.Text = failure.Clean(cell.Text)
		if cell.Text == "" {
			cell = Cell{Text: "-"}
		}
		t.Reserve(i, cell.Text)
		row = append(row, cell)
	}

	t.rows = append(t.rows, row)
}

// Flush writes the rows that were added since the last flush.
func (t *Table) Flush() error {
	var b strings.Builder

	for _, row := range t.rows {
		for i, cell := range row {
			b.WriteString(cell.Style.Paint(cell.Text, t.Colour))

			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell.Text)+gap))
			}
		}
		b.WriteByte('\n')
	}

	t.rows = nil
	if _, err := io.WriteString(t.W, b.String()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}

	return nil
}

// blocks are the eighths of a character, from zero to seven.
var blocks = []rune(" ▏▎▍▌▋▊▉")

// Bar draws a fraction from 0 to 1 as a bar. The bar for 1 is width characters long. Any fraction above zero is
// visible.
func Bar(fraction float64, width int) string {
	fraction = min(max(fraction, 0), 1)

	eighths := int(fraction*float64(width)*8 + 0.5)
	if eighths == 0 && fraction > 0 {
		eighths = 1
	}

	bar := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		bar += string(blocks[rest])
	}

	return bar
}

// Percent formats a fraction in percent, with one digit after the decimal point.
func Percent(fraction float64) string { return fmt.Sprintf("%.1f%%", fraction*100) }

// stable includes every field except absent messages, so that scripts find false, 0, and "" in their fields.
var stable = protojson.MarshalOptions{EmitDefaultValues: true}

// JSON returns a message as protojson, with the field names of the API in lowerCamelCase. It is compact, because
// protojson varies its white space on purpose.
func JSON(message proto.Message) ([]byte, error) {
	var b bytes.Buffer

	loose, err := stable.Marshal(message)
	if err == nil {
		err = json.Compact(&b, loose)
	}

	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}

	return b.Bytes(), nil
}
