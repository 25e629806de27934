package website

import (
	"html/template"
	"strings"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// Page is the key of the HTML in a Website's ConfigMap.
const Page = "index.html"

var page = template.Must(template.New(Page).Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{{.Title}}</title></head>
<body>
<h1>{{.Title}}</h1>
<p>{{.Body}}</p>
</body>
</html>
`))

// Render returns the data of the ConfigMap for the given spec: one page of HTML, with the texts escaped.
func Render(spec v1alpha1.WebsiteSpec) map[string]string {
	var html strings.Builder
	if err := page.Execute(&html, spec); err != nil {
		panic(err) // the template and its data are constant in form
	}

	return map[string]string{Page: html.String()}
}
