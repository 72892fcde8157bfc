"use strict";
(function () {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  const element = (id) => document.getElementById(id);

  function make(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Plotly takes tags such as </s> for HTML and drops them.
  const plain = (text) =>
    text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  for (const [name, figure] of Object.entries(data.charts)) {
    Plotly.newPlot(element("chart-" + name), figure.data, figure.layout, config);
  }

  if (data.explorer) explore(data.explorer);
  printWell();

  function explore(explorer) {
    const choices = ["sentence", "kind", "layer", "head"].map((name) => element("choose-" + name));
    const [sentenceChoice, kindChoice, layerChoice, headChoice] = choices;
    const colours = explorer.template.data[0].colorscale.map(([place, colour]) => [
      place,
      [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16)),
    ]);

    function chosen() {
      const sentence = explorer.sentences[Number(sentenceChoice.value)];
      const kind = kindChoice.value;
      return {
        sentence,
        rows: sentence.rows[kind],
        columns: sentence.columns[kind],
        layers: sentence.weights[kind],
        layer: Number(layerChoice.value),
        head: headChoice.value,
      };
    }

    // Thousandths, and null where a weight is no number.
    const number = (value) => (value < 0 ? null : value / 1000);

    function weightsOf({ layers, layer, head }) {
      const heads = layers[layer];
      if (head !== "mean") return heads[Number(head)].map((row) => row.map(number));
      return heads[0].map((row, y) =>
        row.map((_, x) => {
          const all = heads.map((weights) => number(weights[y][x]));
          return all.includes(null) ? null : all.reduce((a, b) => a + b, 0) / all.length;
        })
      );
    }

    function offer(select, names) {
      const before = select.value;
      select.replaceChildren(
        ...names.map(([value, name]) => {
          const option = make("option", "", name);
          option.value = value;
          return option;
        })
      );
      if (names.some(([value]) => value === before)) select.value = before;
    }

    function offerLayers() {
      const { layers } = chosen();
      const isFirst = layerChoice.options.length === 0;
      offer(layerChoice, layers.map((_, layer) => [String(layer), "layer " + layer]));
      if (isFirst) layerChoice.value = String(layers.length - 1);
      offerHeads();
    }

    function offerHeads() {
      const { layers, layer } = chosen();
      const heads = layers[layer].map((_, head) => [String(head), "head " + head]);
      offer(headChoice, [["mean", "mean of heads"], ...heads]);
    }

    function showTexts() {
      const blocks = Object.entries(chosen().sentence.texts).map(([name, text]) => {
        const block = make("div", "text");
        const words = make("bdi", "", text);
        words.dir = "auto";
        block.append(make("span", "name", name), words);
        return block;
      });
      element("explorer-texts").replaceChildren(...blocks);
    }

    function label(piece) {
      const letters = [...piece];
      if (letters.length <= explorer.label_length) return plain(piece);
      return plain(letters.slice(0, explorer.label_length - 1).join("") + "…");
    }

    // On paper nothing scrolls: the whole map takes the width of A4 or Letter.
    const paper = 640;

    function draw(isPrinted = false) {
      const choice = chosen();
      const { rows, columns } = choice;
      const box = element("heat-map");
      const length = (pieces) =>
        Math.min(explorer.label_length, Math.max(...pieces.map((piece) => [...piece].length)));
      const left = 9 * length(rows) + 12;
      const right = 34;
      const room = (isPrinted ? paper : box.parentElement.clientWidth) - left - right;
      // On a screen, many pieces scroll within the picture's own box.
      const cell = Math.max(isPrinted ? 4 : 15, Math.min(44, room / columns.length));
      const isSteep = cell < 27;
      const top = (isSteep ? 9 : 7) * length(columns) + 22;
      const width = Math.floor(left + right + cell * columns.length);
      const height = Math.ceil(top + 12 + Math.max(15, cell) * rows.length);
      box.style.width = width + "px";
      box.style.height = height + "px";
      const weights = weightsOf(choice);
      const { data: [trace], layout } = explorer.template;
      const axis = (pieces, ends) => ({
        tickvals: pieces.map((_, place) => place),
        ticktext: pieces.map(label),
        range: ends,
      });
      const shown = {
        ...trace,
        z: weights,
        text: rows.map((row) => columns.map((column) => plain(`${row} looks at ${column}`))),
      };
      const drawn = {
        ...layout,
        width,
        height,
        margin: { l: left, r: right, t: top, b: 12 },
        xaxis: {
          ...layout.xaxis,
          ...axis(columns, [-0.5, columns.length - 0.5]),
          tickangle: isSteep ? -90 : -45,
        },
        yaxis: { ...layout.yaxis, ...axis(rows, [rows.length - 0.5, -0.5]) },
      };
      const isFirst = !box.classList.contains("js-plotly-plot");
      Plotly.react(box, [shown], drawn, { ...config, responsive: false });
      if (isFirst) box.on("plotly_hover", (event) => read(event.points[0]));
      element("heat-map-reading").textContent = "Point at a cell to read its weight.";
    }

    function read(point) {
      const { rows, columns } = chosen();
      const weight = point.z === null ? "no number" : point.z.toFixed(3);
      element("heat-map-reading").textContent =
        `${rows[point.y]} looks at ${columns[point.x]}: ${weight}`;
    }

    function colourOf(value) {
      if (value < 0) return [220, 60, 60];
      const place = value / 1000;
      let stop = 1;
      while (stop < colours.length - 1 && colours[stop][0] < place) stop++;
      const [[start, from], [end, to]] = [colours[stop - 1], colours[stop]];
      const share = Math.min(1, (place - start) / (end - start));
      return from.map((channel, i) => channel + share * (to[i] - channel));
    }

    function paint(canvas, weights) {
      canvas.width = weights[0].length;
      canvas.height = weights.length;
      const context = canvas.getContext("2d");
      const image = context.createImageData(canvas.width, canvas.height);
      weights.flat().forEach((value, i) => image.data.set([...colourOf(value), 255], 4 * i));
      context.putImageData(image, 0, 0);
    }

    function drawThumbnails() {
      const layers = chosen().layers.map((heads, layer) => {
        const block = make("div", "layer");
        const grid = make("div", "heads");
        heads.forEach((weights, head) => {
          const button = make("button");
          const canvas = make("canvas");
          paint(canvas, weights);
          button.type = "button";
          button.append(canvas, "head " + head);
          button.dataset.layer = layer;
          button.dataset.head = head;
          button.setAttribute("aria-label", `layer ${layer}, head ${head}`);
          button.addEventListener("click", () => {
            layerChoice.value = String(layer);
            offerHeads();
            headChoice.value = String(head);
            draw();
            press();
          });
          grid.append(button);
        });
        block.append(make("h4", "", "layer " + layer), grid);
        return block;
      });
      element("thumbnails").replaceChildren(...layers);
      press();
    }

    function press() {
      for (const button of element("thumbnails").querySelectorAll("button")) {
        const { layer, head } = button.dataset;
        const isChosen = layer === layerChoice.value && head === headChoice.value;
        button.setAttribute("aria-pressed", String(isChosen));
      }
    }

    function show() {
      offerLayers();
      showTexts();
      draw();
      drawThumbnails();
    }

    sentenceChoice.addEventListener("change", show);
    kindChoice.addEventListener("change", show);
    layerChoice.addEventListener("change", () => { offerHeads(); draw(); press(); });
    headChoice.addEventListener("change", () => { draw(); press(); });
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      // A phone's address bar comes and goes, which changes the height alone.
      if (window.innerWidth !== width) draw();
      width = window.innerWidth;
    });
    window.addEventListener("beforeprint", () => draw(true));
    window.addEventListener("afterprint", () => draw());
    show();
  }

  function printWell() {
    const charts = () => document.querySelectorAll(".chart .plot");
    let closed = [];
    window.addEventListener("beforeprint", () => {
      closed = [...document.querySelectorAll("details:not([open])")];
      closed.forEach((details) => { details.open = true; });
      // Two beside one another on A4 or Letter.
      charts().forEach((chart) => Plotly.relayout(chart, { width: 310, height: 200 }));
    });
    window.addEventListener("afterprint", () => {
      closed.forEach((details) => { details.open = false; });
      charts().forEach((chart) => Plotly.relayout(chart, { width: null, height: null, autosize: true }));
    });
  }
})();
