// Package report renders the results of a run: as a Markdown page, as JSON, and as plots. The caller writes the
// files.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// The names of the files that [Files] returns, besides a picture per chart: its ID with ".svg".
const (
	// Page is the report for people, in Markdown.
	Page = "report.md"
	// Data is the report for machines: a [result.Report] as JSON.
	Data = "report.json"
)

// Files returns all files of a report by name, for one directory. It returns an error if a chart cannot be drawn or
// the report cannot be encoded as JSON.
func Files(r *result.Report) (map[string][]byte, error) {
	files, err := Pictures(r)
	if err != nil {
		return nil, err
	}

	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}

	files[Page], files[Data] = []byte(Markdown(r)), data

	return files, nil
}

// Pictures returns the plots of all charts by file name.
func Pictures(r *result.Report) (map[string][]byte, error) {
	files := map[string][]byte{}

	for i := range r.Charts {
		svg, err := drawn(&r.Charts[i])
		if err != nil {
			return nil, err
		}

		files[r.Charts[i].ID+extension] = []byte(svg)
	}

	return files, nil
}

const extension = ".svg"

// Markdown returns the page: a description of the run, the table, links to the plots, and an explanation.
func Markdown(r *result.Report) string {
	var b strings.Builder
	b.WriteString("# What sharding costs\n\n")
	b.WriteString(results(r))

	if len(r.Charts) > 0 {
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
		row := &r.Rows[i]

		texts := append([]string{row.Title + marks(notes, row.Notes)}, cells(row)...)
		for i, text := range texts {
			texts[i] = cmp.Or(strings.NewReplacer("|", `\|`, "\n", " ").Replace(text), nothing)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(texts, " | "))
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
	var links []string

	for _, c := range r.Charts {
		title := strings.NewReplacer("[", "(", "]", ")").Replace(c.Title)
		links = append(links, fmt.Sprintf("![%s](%s%s%s)\n", title, dir, c.ID, extension))
	}

	return strings.Join(links, "\n")
}

// about describes when, how, and on which machine the run was made.
func about(r *result.Report) string {
	return fmt.Sprintf("Version %s, measured on %s, at scale %s, in %s, on %s",
		r.Version, r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Scale,
		time.Duration(r.Took*float64(time.Second)).Round(time.Second), r.Machine)
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

// cells returns the cells of a row.
func cells(r *result.Row) []string {
	unit := r.Unit
	if r.ByRatio() {
		unit = ratio
	}

	floor := r.FloorTitle

	if len(r.Floor) > 0 {
		median, _, _ := result.Spread(r.Floor)
		floor = strings.TrimPrefix(floor+": "+result.WithUnit(number(median, r.Unit), r.Unit), ": ")
	}

	median, low, high := r.Result()

	found := result.WithUnit(closeTo(median, unit, r), unit)
	if low < high {
		found += " (" + number(low, unit) + " to " + number(high, unit) + ")"
	}

	if r.ByRatio() {
		value, _, _ := result.Spread(r.Values)
		found += ", " + result.WithUnit(number(value, r.Unit), r.Unit)
	}

	target, met := judgement(r, unit)

	return []string{floor, r.PriorArt, target, found, met}
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
	for digits := 2; !r.Met() && text == number(r.Target.Value, unit) && digits < 10; digits++ {
		if precise := result.Fixed(median, digits); precise != result.Fixed(r.Target.Value, digits) {
			text = precise
		}
	}

	return text
}

// judgement returns the target of a row, and whether the row meets it; both are empty without a target.
func judgement(r *result.Row, unit string) (target, met string) {
	if r.Target.Bound == "" {
		return "", ""
	}

	met = "yes"
	if !r.Met() {
		met = "**no**"
	}

	return r.Target.Bound + " " + result.WithUnit(result.Fixed(r.Target.Value, -1), unit), met
}
