package page

import (
	"regexp"
	"strings"
)

// rule is a kind of text that differs between runs, and its replacement on a page.
type rule struct {
	find    *regexp.Regexp
	replace string
}

// rules apply in this order.
var rules = []rule{
	// The UID of an object.
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "01234567-89ab-cdef-0123-456789abcdef"},
	// A time.
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-01-02T15:04:05Z"},
	// A time at the beginning of a line.
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\b`), "15:04:05"},
	// An age, in three formats.
	{regexp.MustCompile(`\b(at least )?\d+[smhd](\d+[smh])? ago\b`), "1s ago"},
	{regexp.MustCompile(`\b(at least )?\d+ (s|min|h|d)( \d+ (s|min|h))? ago\b`), "1 s ago"},
	{regexp.MustCompile(`"renewalAge": "[^"]*"`), `"renewalAge": "1s"`},
	// The token of the next page, which depends on other events in the cluster.
	{regexp.MustCompile(`"nextPageToken": "[^"]+"`), `"nextPageToken": "b3BhcXVl"`},
	// An age in the last column of a table.
	{regexp.MustCompile(`(?m)(\S {3,})\d+[smhd](\d+[smh])?$`), "${1}1s"},
	// An age in a sentence of an explanation.
	{regexp.MustCompile(`\b\d+ (s|min|h|d)( \d+ (s|min|h))? (old|now)\b`), "1 s $4"},
	// The port of a process.
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+\b`), "127.0.0.1:8090"},
}

// Stable normalizes what differs between runs in the output of a command: UIDs, times, ages, page tokens, and ports of 127.0.0.1. The
// result ends with a line feed, unless it is empty.
func Stable(output string) string {
	for _, rule := range rules {
		output = rule.find.ReplaceAllString(output, rule.replace)
	}

	if output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}

	return output
}

// spaces are the gap between columns of a table. Their number depends on the length of the ages.
var spaces = regexp.MustCompile(`[ \t]+`)

// same reports whether two outputs differ only in normalized text and spaces.
func same(a, b string) bool {
	return spaces.ReplaceAllString(Stable(a), " ") == spaces.ReplaceAllString(Stable(b), " ")
}
