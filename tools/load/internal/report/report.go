// Package report renders the results of a run: as a Markdown page, as a table for terminals, as JSON, and as plots. The caller writes the
// files.
package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/plot"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// The names of the files that [Files] returns, besides a picture per series: its ID with ".svg".
const (
	// Page is the report for people, in Markdown.
	Page = "report.md"
	// Data is the report for machines: JSON that [result.Read] reads.
	Data = "report.json"
)

// Files returns all files of a report by name, for one directory. It returns an error if a series cannot be drawn or the report cannot be
// encoded as JSON.
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

// Pictures returns the plots of all series, and the picture of the time lines, by file name.
func Pictures(r *result.Report) (map[string][]byte, error) {
	files := map[string][]byte{}

	for i := range r.Series {
		svg, err := plot.SVG(&r.Series[i])
		if err != nil {
			return nil, err
		}

		files[pictureOf(&r.Series[i])] = []byte(svg)
	}

	if lines := timelines(r); len(lines) > 0 {
		svg, err := plot.Timelines(timelinesTitle, lines)
		if err != nil {
			return nil, err
		}

		files[timelinesPicture] = []byte(svg)
	}

	return files, nil
}

// The picture of all time lines.
const (
	timelinesPicture = "continuity.svg"
	timelinesTitle   = "What changes of shards do to work on objects"
)

func timelines(r *result.Report) (lines []*result.Timeline) {
	for i := range r.Rows {
		if t := r.Rows[i].Timeline; t != nil {
			lines = append(lines, t)
		}
	}

	return lines
}

func pictureOf(s *result.Series) string { return s.ID + ".svg" }

// Markdown returns the page: a description of the run, the table, links to the plots, and an explanation.
func Markdown(r *result.Report) string {
	var b strings.Builder
	b.WriteString("# What sharding costs\n\n")
	b.WriteString(results(r))

	if len(r.Series) > 0 || len(timelines(r)) > 0 {
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
	b.WriteString("| measurement | floor | prior art | target | result: median (range) | met |\n|---|---|---|---|---|---|\n")

	notes := notesOf(r)
	for i := range r.Rows {
		row := lineOf(&r.Rows[i])

		cells := []string{row.title + marks(notes, r.Rows[i].Notes), row.floor(), row.priorArt, row.target, row.result(), row.met}
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
		links = append(links, fmt.Sprintf("![%s](%s%s)\n", strings.NewReplacer("[", "(", "]", ")").Replace(s.Title), dir, pictureOf(s)))
	}

	if len(timelines(r)) > 0 {
		links = append(links, fmt.Sprintf("![%s](%s%s)\n", timelinesTitle, dir, timelinesPicture))
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
		machine = append(machine, figure.Number(float64(r.Machine.MemoryBytes)/(1<<30))+" GiB of memory")
	}

	if r.Machine.OS != "" {
		machine = append(machine, r.Machine.OS)
	}

	begin := "Measured"
	if r.Version != "" {
		begin = "Version " + r.Version + ", measured"
	}

	return fmt.Sprintf("%s on %s, at scale %s, in %s, on %s",
		begin, r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Scale, time.Duration(r.Took*float64(time.Second)).Round(time.Second), strings.Join(machine, ", "))
}

// Splice replaces two parts of a Markdown page: the part between the lines "<!-- results -->" and "<!-- end of results -->" with the table
// of the report, and the part between "<!-- plots -->" and "<!-- end of plots -->" with links to the files of [Pictures]. pictures is their
// directory relative to the page. It returns an error unless the page has exactly one of each of these lines, in this order.
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
		return "", fmt.Errorf("the page must have one line %q and, after it, one line %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}

	return before + begin + text + end + after, nil
}
