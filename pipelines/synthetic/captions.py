"""Captions in several languages, with grammatical agreement."""

from collections.abc import Sequence

LANGUAGES = ("en", "de", "fr", "es", "zh")

# Noun and gender (m, f, n) per shape, for the languages whose adjectives agree with it.
_NOUNS = {
    "de": {
        "circle": ("Kreis", "m"),
        "square": ("Quadrat", "n"),
        "triangle": ("Dreieck", "n"),
        "cross": ("Kreuz", "n"),
        "ring": ("Ring", "m"),
    },
    "fr": {
        "circle": ("cercle", "m"),
        "square": ("carré", "m"),
        "triangle": ("triangle", "m"),
        "cross": ("croix", "f"),
        "ring": ("anneau", "m"),
    },
    "es": {
        "circle": ("círculo", "m"),
        "square": ("cuadrado", "m"),
        "triangle": ("triángulo", "m"),
        "cross": ("cruz", "f"),
        "ring": ("anillo", "m"),
    },
}
_ARTICLES = {
    "de": {"m": "ein", "n": "ein"},
    "fr": {"m": "un", "f": "une"},
    "es": {"m": "un", "f": "una"},
}
_ADJECTIVES = {
    "de": {
        "red": {"m": "roter", "n": "rotes"},
        "green": {"m": "grüner", "n": "grünes"},
        "blue": {"m": "blauer", "n": "blaues"},
        "yellow": {"m": "gelber", "n": "gelbes"},
        "purple": {"m": "violetter", "n": "violettes"},
        "orange": {"m": "oranger", "n": "oranges"},
        "cyan": {"m": "türkiser", "n": "türkises"},
        "pink": {"m": "rosa", "n": "rosa"},
    },
    "fr": {
        "red": {"m": "rouge", "f": "rouge"},
        "green": {"m": "vert", "f": "verte"},
        "blue": {"m": "bleu", "f": "bleue"},
        "yellow": {"m": "jaune", "f": "jaune"},
        "purple": {"m": "violet", "f": "violette"},
        "orange": {"m": "orange", "f": "orange"},
        "cyan": {"m": "cyan", "f": "cyan"},
        "pink": {"m": "rose", "f": "rose"},
    },
    "es": {
        "red": {"m": "rojo", "f": "roja"},
        "green": {"m": "verde", "f": "verde"},
        "blue": {"m": "azul", "f": "azul"},
        "yellow": {"m": "amarillo", "f": "amarilla"},
        "purple": {"m": "morado", "f": "morada"},
        "orange": {"m": "naranja", "f": "naranja"},
        "cyan": {"m": "cian", "f": "cian"},
        "pink": {"m": "rosa", "f": "rosa"},
    },
}
_ZH_COLORS = {
    "red": "红色",
    "green": "绿色",
    "blue": "蓝色",
    "yellow": "黄色",
    "purple": "紫色",
    "orange": "橙色",
    "cyan": "青色",
    "pink": "粉色",
}
_ZH_SHAPES = {
    "circle": "圆形",
    "square": "正方形",
    "triangle": "三角形",
    "cross": "十字形",
    "ring": "圆环",
}
_ZH_NUMBERS = "零一两三四五六七八九"
_AND = {"en": " and ", "de": " und ", "fr": " et ", "es": " y ", "zh": "和"}
_PAGES = {
    "en": 'a page that says "{}"',
    "de": "eine Seite mit der Aufschrift „{}“",
    "fr": "une page où il est écrit « {} »",
    "es": "una página que dice «{}»",
    "zh": "写着“{}”的一页",
}
_CHARTS = {
    "en": {"bar": "a bar chart of {n} bars", "line": "a line chart", "pie": "a pie chart"},
    "de": {
        "bar": "ein Balkendiagramm mit {n} Balken",
        "line": "ein Liniendiagramm",
        "pie": "ein Kreisdiagramm",
    },
    "fr": {
        "bar": "un diagramme à {n} barres",
        "line": "un graphique en courbes",
        "pie": "un diagramme circulaire",
    },
    "es": {
        "bar": "un gráfico de {n} barras",
        "line": "un gráfico de líneas",
        "pie": "un gráfico circular",
    },
    "zh": {"bar": "有{n}个柱的柱状图", "line": "折线图", "pie": "饼图"},
}


def describe_scene(objects: Sequence[tuple[str, str]], lang: str) -> str:
    """Returns the caption of (colour, shape) pairs, such as "a red circle and a blue ring"."""
    phrases = [_colored_shape_phrase(color, shape, lang) for color, shape in objects]
    if len(phrases) == 1:
        return phrases[0]
    comma = "、" if lang == "zh" else ", "
    return comma.join(phrases[:-1]) + _AND[lang] + phrases[-1]


def describe_page(text: str, lang: str) -> str:
    """Returns the caption of a page with large words on it."""
    return _PAGES[lang].format(text)


def describe_chart(kind: str, num_parts: int, lang: str) -> str:
    """Returns the caption of a chart of `kind` bar, line or pie."""
    number = _ZH_NUMBERS[num_parts] if lang == "zh" else str(num_parts)
    return _CHARTS[lang][kind].format(n=number)


def _colored_shape_phrase(color: str, shape: str, lang: str) -> str:
    if lang == "en":
        return f"{'an' if color[0] in 'aeiou' else 'a'} {color} {shape}"
    if lang == "zh":
        return f"一个{_ZH_COLORS[color]}的{_ZH_SHAPES[shape]}"
    # The adjective agrees with the noun, and comes before it in German only: "ein roter Kreis", "un
    # cercle rouge", "una cruz roja".
    noun, gender = _NOUNS[lang][shape]
    words = [_ADJECTIVES[lang][color][gender], noun]
    if lang in ("fr", "es"):
        words.reverse()
    return " ".join([_ARTICLES[lang][gender], *words])
