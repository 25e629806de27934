// Package page keeps the output of commands on a Markdown page up to date: it runs the commands, in the order of the page, in one shell,
// and records their output or compares it with the page.
//
// A command is a line that begins with "$ " in a fenced block of the language console. It continues on the next line while its
// line ends with a backslash. What follows, up to the next command or the end of the block, is its output: standard output
// and error, as on a terminal. Values that differ between runs are normalized; see [Stable].
package page

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	fence  = "```"
	opens  = fence + "console"
	prompt = "$ "
	// again is how long to wait before a command is run again that has not printed what the page says.
	again = 200 * time.Millisecond
)

// Command is a command of a page.
type Command struct {
	// Line is the number of its line, from 1.
	Line int
	// Text is what the shell gets: one line, or several lines that end with a backslash, except the last one. It does not end with a line
	// feed.
	Text string
	// Output is what the command prints according to the page. It is empty or ends with a line feed.
	Output string

	before string // the page between the previous command and this one
}

// Page is a Markdown page. Parse creates it. It is not safe for concurrent use.
type Page struct {
	// Commands are the commands in their order. A change of a command changes the page.
	Commands []*Command

	end string // the page after the last command
}

// Parse reads a page. It returns an error if a block is not closed or does not begin with a command.
func Parse(text string) (*Page, error) {
	p := &Page{}

	var (
		inBlock    bool
		current    *Command // of the block; its output is being read
		unfinished bool     // its text is
	)

	number := 0
	for line := range strings.Lines(text) {
		number++

		bare := strings.TrimRight(line, "\r\n")
		switch {
		case !inBlock:
			inBlock = bare == opens
			p.end += line
		case unfinished:
			current.Text += "\n" + bare
			unfinished = strings.HasSuffix(bare, `\`)
		case bare == fence:
			inBlock, current = false, nil
			p.end += line
		case strings.HasPrefix(bare, prompt):
			current = &Command{Line: number, Text: strings.TrimPrefix(bare, prompt), before: p.end}
			unfinished = strings.HasSuffix(bare, `\`)

			p.Commands, p.end = append(p.Commands, current), ""
		case current == nil:
			return nil, fmt.Errorf("line %d: a console block must begin with a command: a line that begins with %q", number, prompt)
		default:
			current.Output += bare + "\n"
		}
	}

	if inBlock {
		return nil, errors.New("the last console block is not closed")
	}

	return p, nil
}

// String returns the page as Markdown.
func (p *Page) String() string {
	var b strings.Builder
	for _, c := range p.Commands {
		b.WriteString(c.before + prompt + c.Text + "\n" + c.Output)
	}

	return b.String() + p.end
}

// Update runs every command once and records its output. An output that differs only as [Stable] allows stays as it was. Update returns
// the commands with a new output. After an error, do not use the page.
func (p *Page) Update(ctx context.Context, sh *Shell) ([]*Command, error) {
	var changed []*Command

	for _, c := range p.Commands {
		output, err := sh.Run(ctx, c.Text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", c.Line, err)
		}

		if same(output, c.Output) {
			continue
		}

		c.Output = Stable(output)
		changed = append(changed, c)

		for line := range strings.Lines(c.Output) {
			if strings.HasPrefix(line, prompt) || line == fence+"\n" {
				return nil, fmt.Errorf("line %d: the output has a line that the page cannot show: %q", c.Line, line)
			}
		}
	}

	return changed, nil
}

// Check runs every command and returns an error that shows each command with another output than on the page. It runs such a command again
// until patience is over, because the system may take a moment on a busy machine. After a command that differs, it runs each only once.
func (p *Page) Check(ctx context.Context, sh *Shell, patience time.Duration) error {
	var differ []error

	for _, c := range p.Commands {
		var (
			output string
			failed error
		)

		if len(differ) > 0 {
			patience = 0
		}

		err := wait.PollUntilContextTimeout(ctx, again, patience, true, func(context.Context) (bool, error) {
			output, failed = sh.Run(ctx, c.Text)
			return same(output, c.Output), failed
		})

		if failed != nil {
			return errors.Join(append(differ, fmt.Errorf("line %d: %w", c.Line, failed))...)
		}

		if err != nil {
			differ = append(differ, fmt.Errorf("line %d: %s%s\nprints:\n%sand not what the page says:\n%s", c.Line, prompt, c.Text, Stable(output), c.Output))
		}
	}

	return errors.Join(differ...)
}
