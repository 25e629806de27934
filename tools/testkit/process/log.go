package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
)

// Tail returns the last lines of a log file, empty if it cannot be read.
func Tail(file string, lines int) string {
	content, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(content)) == 0 {
		return ""
	}

	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))

	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Find returns the lines of a log file that contain one of the words in any case, at most limit lines.
func Find(file string, limit int, words ...string) ([]string, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("search a log: %w", err)
	}
	defer func() { _ = in.Close() }() // was only read

	var found []string

	lines := bufio.NewReader(in)
	for len(found) < limit {
		line, err := lines.ReadString('\n')

		lower := strings.ToLower(line)
		for _, word := range words {
			if strings.Contains(lower, strings.ToLower(word)) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}

		if err != nil {
			break // the end of the file
		}
	}

	return found, nil
}

// Quote returns the words as a command for a POSIX shell.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = word
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()[]{}*?!#~") {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}

	return strings.Join(quoted, " ")
}
