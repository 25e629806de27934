// Package report renders the results of a run: as a Markdown page, as a table for terminals, as JSON, and as plots. The
// caller writes the files.
package report

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// The names of the files that [Files] returns, besides a picture per series: its ID with ".svg".
const (
	// Page is the report for people, in Markdown.
	Page = "report.md"
	// Data is the report for machines: JSON that [result.Read] reads.
	Data = "report.json"
)

// Files returns all files of a report by name, for one directory. It returns an error if a series cannot be drawn or
// the report cannot be encoded as JSON.
func Files(r *result.Report) (map[string][]byte, error) {
	files, err := Pictures(r)
	if err != nil {
		return nil, err
	}

	var data bytes.Buffer
	if err := r.Write(&data); err != nil {
		return nil, err
	}

	files[Page] = []byte(Markdown(r))
	files[Data] = data.Bytes()

	return files, nil
}

// Pictures returns the plots of all series by file name.
func Pictures(r *result.Report) (map[string][]byte, error) {
	files := map[string][]byte{}

	for i := range r.Series {
		svg, err := picture(&r.Series[i])
		if err != nil {
			return nil, err
		}

		files[pictureOf(&r.Series[i])] = []byte(svg)
	}

	return files, nil
}

func pictureOf(s *result.Series) string { return s.ID + ".svg" }

// Markdown returns the page: a description of the run, the table, links to the plots, and an explanation.
func Markdown(r *result.Report) string {
	var b strings.Builder
	b.WriteString("# What sharding costs\n\n")
	b.WriteString(results(r))

	if len(r.Series) > 0 {
		b.WriteString("\n## How it grows\n\n")
		b.WriteString(plots(r, ""))
	}
	b.WriteString("\n## How to read this\n\n")
	b.WriteString(howToRead)

	return b.String()
}

const howToRead = `Each measurement has several rounds. In each round, it alternates with its floor: the lowest possible cost of such work, on the same
machine and at the same time. The result is the median of the rounds, with the lowest and the highest in parentheses. For a ratio (×), the value
is divided by the floor of the same round, so that other load on the machine affects both equally. The measured median follows the ratio. Prior
art is the result of other software in the same measurement. CPU is the CPU time of the process, not elapsed time.
`

// results returns a description of the run, and the table with its notes.
func results(r *result.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n", about(r))
	b.WriteString("| measurement | floor | prior art | target | result: median (range) | met " +
		"|\n|---|---|---|---|---|---|\n")

	notes := notesOf(r)
	for i := range r.Rows {
		row := lineOf(&r.Rows[i])

		cells := []string{
			row.title + marks(notes, r.Rows[i].Notes), row.floor(), row.priorArt, row.target, row.result(), row.met,
		}
		for i := range cells {
			cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cells[i])
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}

	if len(notes) > 0 {
		b.WriteByte('\n')
	}

	for i, note := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, note)
	}

	return b.String()
}

// marks refers to some of the notes by their numbers.
func marks(notes, some []string) string {
	numbers := make([]int, 0, len(some))
	for _, note := range some {
		numbers = append(numbers, slices.Index(notes, note)+1)
	}
	slices.Sort(numbers)

	if len(numbers) == 0 {
		return ""
	}

	return " <sup>" + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers)), ", "), "[]") + "</sup>"
}

// notesOf returns the notes of all rows, each once, in the order of their first row.
func notesOf(r *result.Report) (notes []string) {
	for i := range r.Rows {
		for _, note := range r.Rows[i].Notes {
			if !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
		}
	}

	return notes
}

// plots links to the pictures in a directory, which ends in a slash unless it is empty.
func plots(r *result.Report, dir string) string {
	links := make([]string, 0, len(r.Series))
	for i := range r.Series {
		s := &r.Series[i]
		links = append(links, fmt.Sprintf("![%s](%s%s)\n", strings.NewReplacer("[", "(", "]", ")").Replace(s.Title), dir,
			pictureOf(s)))
	}

	return strings.Join(links, "\n")
}

// about describes when, how, and on which machine the run was made.
func about(r *result.Report) string {
	machine := []string{fmt.Sprintf("%d cores", r.Machine.Cores)}
	if r.Machine.Cores == 1 {
		machine[0] = "1 core"
	}

	if r.Machine.CPU != "" {
		machine[0] += " of " + r.Machine.CPU
	}

	if r.Machine.MemoryBytes > 0 {
		machine = append(machine, result.Number(float64(r.Machine.MemoryBytes)/(1<<30))+" GiB of memory")
	}

	if r.Machine.OS != "" {
		machine = append(machine, r.Machine.OS)
	}

	begin := "Measured"
	if r.Version != "" {
		begin = "Version " + r.Version + ", measured"
	}

	return fmt.Sprintf("%s on %s, at scale %s, in %s, on %s",
		begin, r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Scale,
		time.Duration(r.Took*float64(time.Second)).Round(time.Second), strings.Join(machine, ", "))
}

// Splice replaces two parts of a Markdown page: the part between the lines "<!-- results -->" and "<!-- end of results
// -->" with the table of the report, and the part between "<!-- plots -->" and "<!-- end of plots -->" with links to
// the files of [Pictures]. pictures is their directory relative to the page. It returns an error unless the page has
// exactly one of each of these lines, in this order.
func Splice(page string, r *result.Report, pictures string) (string, error) {
	if pictures != "" && !strings.HasSuffix(pictures, "/") {
		pictures += "/"
	}

	page, err := between(page, "results", results(r))
	if err != nil {
		return "", err
	}

	return between(page, "plots", plots(r, pictures))
}

// between puts a text between the two lines that have the name.
func between(page, name, text string) (string, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(page, begin)

	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed || strings.Count(page, begin) != 1 || strings.Count(page, end) != 1 {
		return "", fmt.Errorf("the page must have one line %q and, after it, one line %q", strings.TrimSpace(begin),
			strings.TrimSpace(end))
	}

	return before + begin + text + end + after, nil
}

// ratio is the unit of ratios.
const ratio = "×"

// nothing stands for an empty cell.
const nothing = "–"

// line is a formatted row.
type line struct {
	title, floorTitle, priorArt, target, met string
	floorMedian                              string // with unit; empty without floor
	median, spread                           string // of what is judged; the spread is empty where there is none
	measured                                 string // the median that was measured, where a ratio is judged
}

func lineOf(r *result.Row) line {
	unit := r.Unit
	if r.Judge == result.JudgeRatio {
		unit = ratio
	}

	median, low, high := r.Result()

	l := line{
		title: r.Title, floorTitle: r.FloorTitle, priorArt: orNothing(r.PriorArt), target: targetOf(r, unit), met: metOf(r),
		median: result.WithUnit(closeTo(median, unit, r), unit),
	}
	if low != high {
		l.spread = number(low, unit) + " to " + number(high, unit)
	}

	if len(r.Floor) > 0 {
		floor, _, _ := result.Spread(r.Floor)
		l.floorMedian = result.WithUnit(number(floor, r.Unit), r.Unit)
	}

	if r.Judge == result.JudgeRatio && len(r.Values) > 0 {
		value, _, _ := result.Spread(r.Values)
		l.measured = result.WithUnit(number(value, r.Unit), r.Unit)
	}

	return l
}

// floor is the cell of the floor: what it is, and its median.
func (l line) floor() string {
	switch {
	case l.floorMedian == "":
		return orNothing(l.floorTitle)
	case l.floorTitle == "":
		return l.floorMedian
	default:
		return l.floorTitle + ": " + l.floorMedian
	}
}

// result is the cell of the result.
func (l line) result() string {
	text := l.median
	if l.spread != "" {
		text += " (" + l.spread + ")"
	}

	if l.measured != "" {
		text += ", " + l.measured
	}

	return text
}

// number formats ratios with two decimals, unless they are large.
func number(v float64, unit string) string {
	const large = 10
	if unit == ratio && math.Abs(v) < large {
		return result.Fixed(v, 2)
	}

	return result.Number(v)
}

// closeTo formats a median with enough digits to distinguish it from a missed target.
func closeTo(median float64, unit string, r *result.Row) string {
	text := number(median, unit)
	if r.Met() || math.IsNaN(median) || math.IsInf(median, 0) {
		return text
	}

	for digits := 2; text == number(r.Target.Value, unit) && digits < 10; digits++ {
		if precise := result.Fixed(median, digits); precise != result.Fixed(r.Target.Value, digits) {
			text = precise
		}
	}

	return text
}

func targetOf(r *result.Row, unit string) string {
	value := result.WithUnit(result.Exact(r.Target.Value), unit)
	switch r.Target.Bound {
	case result.AtMost:
		return "≤ " + value
	case result.AtLeast:
		return "≥ " + value
	default:
		return nothing
	}
}

func metOf(r *result.Row) string {
	switch {
	case r.Target.Bound == "":
		return nothing
	case r.Met():
		return "yes"
	default:
		return "**no**"
	}
}

func orNothing(text string) string {
	if text == "" {
		return nothing
	}

	return text
}

// Print writes the table for a terminal, with one line per row. Lines of missed targets begin with "!". Errors are
// those of out.
func Print(out io.Writer, r *result.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tMEASUREMENT\tRESULT\tRANGE\tTARGET\tPRIOR ART\tMEASURED\tFLOOR")

	for i := range r.Rows {
		row := &r.Rows[i]
		l := lineOf(row)

		mark := " "
		if !row.Met() {
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", mark, l.title, l.median, orNothing(l.spread), l.target, l.priorArt,
			orNothing(l.measured),
			orNothing(l.floorMedian))
	}

	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table of results: %w", err)
	}

	return nil
}
