package manifests

import (
	"fmt"
	"regexp"
	"strings"
)

// Flag is a flag of a program, parsed from its --help.
type Flag struct {
	// Name has no dashes. Value names the argument; empty for none.
	Name, Value string
	// Default is empty if the help contains none.
	Default string
	// Does describes the flag.
	Does string
}

var (
	flagLine    = regexp.MustCompile(`^ +(?:-\w, )?--([a-z0-9-]+)(?: (\S+))? {2,}(\S.*)$`)
	flagDefault = regexp.MustCompile(`^(.*) \(default "?(.*?)"?\)$`)
)

// ParseHelp returns the flags in the output of --help in their order, except help and version.
func ParseHelp(help string) []Flag {
	_, list, _ := strings.Cut(help, "\nFlags:\n")

	var flags []Flag

	for line := range strings.Lines(list) {
		m := flagLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if len(m) == 0 || m[1] == "help" || m[1] == "version" {
			continue
		}

		f := Flag{Name: m[1], Value: m[2], Does: m[3]}
		if d := flagDefault.FindStringSubmatch(f.Does); d != nil {
			f.Does, f.Default = d[1], d[2]
		}

		flags = append(flags, f)
	}

	return flags
}

// Table returns flags as a Markdown table.
func Table(flags []Flag) string {
	var b strings.Builder
	b.WriteString("| flag | default | what it is |\n|---|---|---|\n")

	for _, f := range flags {
		flag, value := "`--"+f.Name+"`", ""
		if f.Value != "" {
			flag = "`--" + f.Name + " " + f.Value + "`"
		}

		if f.Default != "" {
			value = "`" + f.Default + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", flag, value, strings.ReplaceAll(f.Does, "|", "\\|"))
	}

	return b.String()
}
