package report

import (
	"fmt"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// Splice returns a page in Markdown with the table of the report in place of what is between the lines "<!-- results -->" and
// "<!-- end of results -->", and with links to its pictures between "<!-- plots -->" and "<!-- end of plots -->". The pictures are
// those of [Pictures], in the directory of the given path, seen from the page. All else stays. It fails if the page has not
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
		return "", fmt.Errorf("the page must have one line %q and, after it, one line %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + text + end + after, nil
}
