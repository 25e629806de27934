package command

import (
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// printAdvice prints the advice for people: what was measured, a verdict about each controller, and the conclusion.
func (a *app) printAdvice(o *output, report *advise.Report) error {
	if err := a.printControllers(o, report); err != nil {
		return err
	}

	fmt.Fprintln(a.Out)

	if err := a.printProcesses(o, report); err != nil {
		return err
	}

	fmt.Fprintln(a.Out)

	for i := range report.Controllers {
		a.printVerdict(&report.Controllers[i])
	}

	fmt.Fprintln(a.Out)
	a.printConclusion(o, report)

	return nil
}

func (a *app) printControllers(o *output, report *advise.Report) error {
	table := o.table([]string{"CONTROLLER", "PROCESSES", "WORKERS", "BUSY", "ARRIVE/S", "DONE/S", "ERRORS", "QUEUE", "WAIT", "RECONCILE", "P99", "P99 IN ALL", "SHARDS", "OR WORKERS"},
		"VARIATION", "BURST", "P99 WITH SHARDS", "P99 WITH WORKERS", "MAY GROW")

	for i := range report.Controllers {
		c := &report.Controllers[i]
		row := []any{
			c.Name, c.Processes, c.WorkersPerProcess, share(c.Busy), rate(c.ArrivalsPerSecond), rate(c.ReconcilesPerSecond), render.Percent(c.ErrorShare),
			fmt.Sprintf("%.0f to %.0f", c.QueueBefore, c.QueueAfter), length(c.WaitMeanSeconds), length(c.ReconcileMeanSeconds), length(c.ReconcileP99Seconds),
			length(c.P99Seconds), planned(c.Plan, func(p *advise.Plan) int { return p.Shards }), planned(c.Plan, func(p *advise.Plan) int { return p.WorkersPerProcess }),
		}

		if o.wide() {
			row = append(row, fmt.Sprintf("%.1f", c.ReconcileVariation), fmt.Sprintf("%.1f", c.BurstSize))
			if c.Plan == nil {
				row = append(row, "", "", "")
			} else {
				row = append(row, length(c.Plan.ShardsP99Seconds), length(c.Plan.WorkersP99Seconds), fmt.Sprintf("%.1f-fold", c.Plan.Room))
			}
		}

		table.Row(row...)
	}

	return table.Flush()
}

// planned formats a number of a plan.
func planned(plan *advise.Plan, number func(*advise.Plan) int) render.Cell {
	switch {
	case plan == nil:
		return render.Plain.In("")
	case number(plan) == 0:
		return render.Warn.In("none")
	default:
		return render.Plain.In(fmt.Sprint(number(plan)))
	}
}

func (a *app) printProcesses(o *output, report *advise.Report) error {
	table := o.table([]string{"PROCESS", "CPU", "OF", "MEMORY", "REQUESTS/S", "429", "LIMITED"}, "5XX", "IN REQUESTS", "WAIT FOR CORE", "AGE")

	for i := range report.Processes {
		p := &report.Processes[i]
		row := []any{
			p.Name, fmt.Sprintf("%.2f", p.CPUCores), cores(p.CPULimitCores), fmt.Sprintf("%.0f MiB", p.MemoryBytes/(1<<20)), rate(p.RequestsPerSecond),
			portion(p.ThrottledPerSecond, p.RequestsPerSecond), workers(p.LimiterKnown, p.LimiterWorkers),
		}

		if o.wide() {
			row = append(row, portion(p.FailedPerSecond, p.RequestsPerSecond), workers(p.RequestTimeKnown, p.RequestWorkers),
				length(p.SchedulingP99Seconds), length(p.UptimeSeconds))
		}

		table.Row(row...)
	}

	return table.Flush()
}

// portion formats a part of all requests.
func portion(part, all float64) render.Cell {
	switch {
	case all == 0:
		return render.Plain.In("")
	case part > 0:
		return render.Warn.In(render.Percent(part / all))
	default:
		return render.Plain.In(render.Percent(0))
	}
}

// workers formats how many workers wait for something.
func workers(known bool, number float64) string {
	if !known {
		return "unknown"
	}

	return fmt.Sprintf("%.1f workers", number)
}

func cores(limit float64) string {
	if limit == 0 {
		return "unknown"
	}

	return fmt.Sprintf("%g", limit)
}

// share formats the share of busy workers.
func share(busy float64) render.Cell {
	const (
		high = 0.7
		full = 0.9
	)

	text := render.Percent(busy)

	switch {
	case busy >= full:
		return render.Bad.In(text)
	case busy >= high:
		return render.Warn.In(text)
	default:
		return render.Plain.In(text)
	}
}

func rate(perSecond float64) string { return fmt.Sprintf("%.1f", perSecond) }

// length formats a time in seconds. 0 is empty.
func length(seconds float64) string {
	if seconds <= 0 {
		return ""
	}

	d := time.Duration(seconds * float64(time.Second))

	unit := time.Nanosecond
	for unit < d/100 {
		unit *= 10
	}

	return d.Round(max(unit, time.Microsecond)).String()
}

func (a *app) printVerdict(c *advise.Controller) {
	mark, style := "✓", render.Good
	if c.Verdict.Problem() {
		mark, style = "✗", render.Bad
	}

	fmt.Fprintf(a.Out, "%s %s: %s %s\n", a.paint(style, mark), a.paint(render.Bold, failure.Clean(c.Name)), failure.Clean(c.Text),
		a.paint(render.Dim, "("+string(c.Verdict)+")"))
	a.printDo(c.Do)

	for _, f := range c.Findings {
		fmt.Fprintf(a.Out, "%s %s: %s %s\n", a.paint(render.Warn, "!"), failure.Clean(c.Name), failure.Clean(f.Text), a.paint(render.Dim, "("+f.Reason+")"))
		a.printDo(f.Do)
	}
}

func (a *app) printDo(do string) {
	if do != "" {
		fmt.Fprintf(a.Out, "  → %s\n", failure.Clean(do))
	}
}

func (a *app) printConclusion(o *output, report *advise.Report) {
	fmt.Fprintf(a.Out, "%s\n", a.paint(render.Bold, failure.Clean(report.Conclusion.Text)))

	for _, do := range report.Conclusion.Do {
		a.printDo(do)
	}

	if o.noHeaders {
		return
	}

	fmt.Fprintf(a.Out, "\n%s\n", a.paint(render.Dim, "This relies on assumptions:"))

	for _, text := range report.Assumptions {
		fmt.Fprintf(a.Out, "%s\n", a.paint(render.Dim, "- "+failure.Clean(text)))
	}
}
