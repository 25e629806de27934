package report

import (
	"fmt"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

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
