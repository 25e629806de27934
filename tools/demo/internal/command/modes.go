package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
)

func (c *common) newModes() *cobra.Command {
	r := &runner{common: c, others: []string{"guide", "jobset", "trust-manager", "client-go"}}
	names := (&scenario.Story{}).ModeNames()
	cmd := &cobra.Command{
		Use:   "modes [MODE...]",
		Short: "Demonstrate and verify the other ways to share objects, and leave nothing behind",
		Long: `modes starts everything and runs the modes of docs/modes.md one after the other: ` + strings.Join(names, ", ") + `.
Without arguments, it runs all of them. The steps do not depend on each other.

Every step checks what the mode promises. The exit code is 0 only if all checks pass. The command leaves nothing behind, also after
Ctrl-C.`,
		Example: `  make demo-modes                    builds everything, then runs this
  make demo-modes ARGS=standby       runs one mode
  bin/demo modes slots standby       runs two modes`,
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := (&scenario.Story{}).ModesNamed(args); err != nil {
				return err
			}

			r.choose = func(s *scenario.Story) ([]scenario.Step, error) {
				modes, err := s.ModesNamed(args)

				var steps []scenario.Step
				for _, mode := range modes {
					steps = append(steps, mode.Step)
				}

				return steps, err
			}

			return r.run(cmd.Context())
		},
	}
	r.addStory(cmd, 100)

	return cmd
}
