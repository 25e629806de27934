package page

import (
	"regexp"
	"strings"
)

// rule is a kind of text that differs from run to run, and how it is written on a page.
type rule struct {
	find    *regexp.Regexp
	replace string
}

// rules apply in this order.
var rules = []rule{
	// The uid of an object.
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "01234567-89ab-cdef-0123-456789abcdef"},
	// When something happened.
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-01-02T15:04:05Z"},
	// The same at the beginning of a line that was written then.
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\b`), "15:04:05"},
	// How long ago something happened, in one of three ways to write it.
	{regexp.MustCompile(`\b(at least )?\d+[smhd](\d+[smh])? ago\b`), "1s ago"},
	{regexp.MustCompile(`\b(at least )?\d+ (s|min|h|d)( \d+ (s|min|h))? ago\b`), "1 s ago"},
	{regexp.MustCompile(`"renewalAge": "[^"]*"`), `"renewalAge": "1s"`},
	// Where a list goes on, which depends on what else has happened in the cluster.
	{regexp.MustCompile(`"nextPageToken": "[^"]+"`), `"nextPageToken": "b3BhcXVl"`},
	// How long ago something happened, as the last column of a table.
	{regexp.MustCompile(`(?m)(\S {3,})\d+[smhd](\d+[smh])?$`), "${1}1s"},
	// The same in a sentence of an explanation.
	{regexp.MustCompile(`\b\d+ (s|min|h|d)( \d+ (s|min|h))? (old|now)\b`), "1 s $4"},
	// The port of a process.
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+\b`), "127.0.0.1:8090"},
}

// Stable returns the output of a command with what differs from run to run written in one way: uids, points in time, ages, tokens
// of pages, and ports of 127.0.0.1. It ends with a line feed, unless it is empty.
func Stable(output string) string {
	for _, rule := range rules {
		output = rule.find.ReplaceAllString(output, rule.replace)
	}

	if output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}

	return output
}

// spaces are the gap between columns of a table, which depends on how long the ages in it are.
var spaces = regexp.MustCompile(`[ \t]+`)

// same reports whether two outputs say the same.
func same(a, b string) bool {
	return spaces.ReplaceAllString(Stable(a), " ") == spaces.ReplaceAllString(Stable(b), " ")
}
